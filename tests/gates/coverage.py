"""Adds up what gcov counted of one file over many programs, and names what none of them did.

coverage.py FILE GCDA...

A line is to be executed, and each of its branches (gcov's: one for each outcome of each condition
of && and ||) to be taken, in one program or another. Programs that see a line with another number
of branches, by their macros, are added up apart. What is missing fails: there is no list of it.
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
    file = sys.argv[1]
    lines, branches, functions = collections.Counter(), {}, {}
    for gcda in sys.argv[2:]:
        read(gcda, os.path.basename(file), lines, branches, functions)
    text = open(file).read().split("\n")

    lost = 0
    for (number, _), counts in sorted(branches.items()):
        if lines[number] and all(counts):
            continue
        what = "taken 0%: " + "".join("-+"[c > 0] for c in counts)
        print(f"{file}:{number}: {what if lines[number] else 'never executed'}: "
              f"{functions[number]} | {text[number - 1].strip()}")
        lost += 1
    dead = sum(not count for count in lines.values())
    outcomes = sum(len(counts) for counts in branches.values())
    taken = sum(c > 0 for counts in branches.values() for c in counts)
    print(f"coverage of {file}: {len(lines) - dead} of {len(lines)} lines, "
          f"{taken} of {outcomes} branch outcomes")
    return 1 if lost or not lines else 0


sys.exit(main())
