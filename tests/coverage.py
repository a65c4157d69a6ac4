"""Adds up what gcov counted of one file over many programs, and names what none of them did.

coverage.py FILE LEFT GCDA...

A line is to be executed, and each of its branches (gcov's: one for each outcome of each condition
of && and ||) to be taken, in one program or another. Programs that see a line with another number
of branches, by their macros, are added up apart.

LEFT is the list of what is known to be missing: `function | outcomes | text of the line | reason`.
It may only shrink: what is missing beyond it is an error, and so is what it lists in vain. Outcomes
are `any` where it is for the threads of a test to meet or not: then the line may be covered too.
"""
import collections
import json
import os
import subprocess
import sys


def read(gcda, file, lines, branches, functions):
    command = ["gcov", "--json-format", "--stdout", "--branch-probabilities",
               os.path.basename(gcda)]
    output = subprocess.run(command, cwd=os.path.dirname(gcda), capture_output=True, check=True)
    for text in output.stdout.splitlines():
        for one in json.loads(text)["files"]:
            if os.path.basename(one["file"]) != file:
                continue
            for line in one["lines"]:
                number = line["line_number"]
                lines[number] += line["count"]
                functions[number] = line.get("function_name", "")
                counts = [branch["count"] for branch in line["branches"]]
                old = branches.setdefault((number, len(counts)), [0] * len(counts))
                branches[number, len(counts)] = [a + b for a, b in zip(old, counts)]


def main():
    file, left_file = sys.argv[1:3]
    lines, branches, functions = collections.Counter(), {}, {}
    for gcda in sys.argv[3:]:
        read(gcda, os.path.basename(file), lines, branches, functions)
    text = open(file).read().split("\n")

    missing = collections.Counter()  # of (function, text of the line): outcomes, or 1 for a line
    shown = {}  # where, and what
    for (number, _), counts in branches.items():
        key = functions[number], text[number - 1].strip()
        lost = counts.count(0) if lines[number] else 1
        if lost:
            missing[key] += lost
            what = "taken 0%: " + "".join("-+"[c > 0] for c in counts)
            shown[key] = number, what if lines[number] else "never executed"

    left = {}
    for entry in open(left_file):
        if entry.strip() and not entry.startswith("#"):
            function, count, rest = entry.split(" | ", 2)
            left[function, rest.rsplit(" | ", 1)[0]] = count

    failed = 0
    for key, count in sorted(missing.items(), key=lambda item: shown[item[0]]):
        if left.get(key) not in ("any", str(count)):
            print(f"{file}:{shown[key][0]}: {shown[key][1]}: {key[0]} | {count} | {key[1]}")
            failed += 1
    for key in left:
        if key not in missing and left[key] != "any":
            print(f"{left_file}: {key[0]}: {key[1]}: is covered now: strike it out")
            failed += 1
    dead = sum(not count for count in lines.values())
    outcomes = sum(len(counts) for counts in branches.values())
    taken = sum(c > 0 for counts in branches.values() for c in counts)
    print(f"coverage of {file}: {len(lines) - dead} of {len(lines)} lines, "
          f"{taken} of {outcomes} branch outcomes; {len(left)} lines are known to be left")
    return 1 if failed else 0


sys.exit(main())
