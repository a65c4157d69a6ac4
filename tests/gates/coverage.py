"""Adds up what gcov counted of one file over many programs, and names what none of them did.

coverage.py FILE FOLDER: FOLDER/test and FOLDER/linked have the programs' counters.

A line is to be executed, and each of its branches (gcov's: one for each outcome of each condition
of && and ||) to be taken, in one program or another. Programs that see a line with another number
of branches, by their macros, are added up apart. What is missing fails: there is no list of it.
"""
import collections
import concurrent.futures
import glob
import json
import os
import subprocess
import sys


def counted(gcda):
    command = ["gcov", "--json-format", "--stdout", "--branch-probabilities",
               os.path.basename(gcda)]
    output = subprocess.run(command, cwd=os.path.dirname(gcda), capture_output=True, check=True)
    return [json.loads(text) for text in output.stdout.splitlines()]


def main():
    file, folder = sys.argv[1:]
    name = os.path.basename(file)
    lines, branches, functions = collections.Counter(), {}, {}
    gcda = glob.glob(f"{folder}/test/*.gcda") + glob.glob(f"{folder}/linked/*.gcda")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        units = [unit for units in pool.map(counted, gcda) for unit in units]
    for one in (one for unit in units for one in unit["files"]):
        if os.path.basename(one["file"]) != name:
            continue
        for line in one["lines"]:
            number = line["line_number"]
            lines[number] += line["count"]
            functions[number] = line.get("function_name", "")
            counts = [branch["count"] for branch in line["branches"]]
            old = branches.setdefault((number, len(counts)), [0] * len(counts))
            branches[number, len(counts)] = [a + b for a, b in zip(old, counts)]
    text = open(file).read().split("\n")

    lost = 0
    for (number, _), counts in sorted(branches.items()):
        if lines[number] and all(counts):
            continue
        what = "taken 0%: " + "".join("-+"[c > 0] for c in counts)
        print(f"{name}:{number}: {what if lines[number] else 'never executed'}: "
              f"{functions[number]} | {text[number - 1].strip()}")
        lost += 1
    dead = sum(not count for count in lines.values())
    outcomes = sum(len(counts) for counts in branches.values())
    taken = sum(c > 0 for counts in branches.values() for c in counts)
    print(f"coverage of {name}: {len(lines) - dead} of {len(lines)} lines, "
          f"{taken} of {outcomes} branch outcomes")
    return 1 if lost or not lines else 0


sys.exit(main())
