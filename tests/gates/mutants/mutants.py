"""Do the tests notice a header with one small mistake in it?  mutants.py [--whole] [--help]

cut.py cuts thousands of mutants into one copy of gpupool.h, all asleep; each test program is built
once with it, and MUTANT=number wakes one. A mutant is run by the tests that come to it, the likely
and quick ones first, until one of them fails, crashes or takes far too long: it is killed. One that
survives them all stands in survivors.txt, with the reason, or this gate fails."""
import argparse
import collections
import concurrent.futures
import hashlib
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import cut

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
SURVIVORS = HERE / "survivors.txt"
COMPILER = shutil.which("clang") or "gcc"  # clang takes half as long
# Left out: those that repeat others at length, or need a build of their own. Made small: those that
# take whatever time they get.
LEFT_OUT = ("test_soak", "test_churn", "test_counted", "test_tree_long", "test_fuzz",
            "test_schedules")
SMALL = {"test_tree": ["-DFEW_UNITS=5"], "test_model": ["-DMODEL_CALLS=100000"],
         "test_stitch_faults": ["-DAFTER=6"], "test_tree_misuse": ["-DMISUSE_UNITS=6"],
         "test_races": ["-DSCHEDULES=400", "-DTURNS=400"]}
BESIDE = ("single", "asked", "replaced", "digit", "wrong")  # builds run beside the first of theirs
Test = collections.namedtuple("Test", "name program")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--whole", action="store_true", help="every mutant")
    parser.add_argument("--count", type=int, default=200, help="a sample of so many")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--room", default="", help="of this room only, as in its banner")
    parser.add_argument("--only", default="", help="of functions that match, as a pattern")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--again", action="store_true", help="run those in survivors.txt too")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--fake", required=True, type=pathlib.Path, help="fakecuda, as a library")
    parser.add_argument("--cuda", default="-Itests/fakecuda/include")
    return parser.parse_args()


def keys_of(mutants):
    """A name for each that does not change when the header's lines move."""
    seen, keys = collections.Counter(), {}
    for m in mutants:
        key = f"{m.function}: {m.old} => {m.new or 'nothing'}"
        seen[key] += 1
        keys[m.number] = key + (f" #{seen[key]}" if seen[key] > 1 else "")
    return keys


def lot(seed, key):
    return hashlib.sha1(f"{seed} {key}".encode()).digest()


def read_survivors():
    """A reason, indented, belongs to the lines above it that have none yet."""
    known, waiting = {}, []
    for line in SURVIVORS.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith(" "):
            waiting.append(line)
            continue
        for key in waiting:
            known[key] = line.strip()
        waiting = []
    if waiting:
        sys.exit(f"{SURVIVORS.name}: no reason for: {waiting[0]}")
    return known


# ---- building ----

def variants():
    """(name, source, flags): the first build of each test, and those with other checks. Where a
    test has no threads there are no locks either, but asserts that each is taken and given back."""
    for source in sorted((ROOT / "tests").glob("*/test_*.c"), key=lambda path: path.name):
        if source.stem in LEFT_OUT:
            continue
        text = source.read_text()
        builds = re.findall(r"^// build: (\S+) *(.*)$", text, re.M) or [("plain", "")]
        alone = ["-DGPUPOOL_SINGLE_THREAD=1"] * (
            not re.search("pthread|sched_yield|^test_(ring|host)", source.stem + text))
        for i, (name, flags) in enumerate(builds):
            macros = [f for f in flags.split() if f.startswith("-D") and "EVERY" not in f]
            macros += SMALL.get(source.stem, []) + alone
            if i == 0 or name in BESIDE:
                yield f"{source.stem}-{name}", source, macros


def compile_to(options, out, result, *what):
    # Without optimisation: most run for less time than that would take.
    told = subprocess.run(
        [COMPILER, "-std=c11", "-w", "-O0", "-pthread", "-DCHECK_STOP=1", *options.cuda.split(),
         f"-I{out}", f"-I{out}/tests", f"-I{out}/tests/support", f"-I{HERE}", "-o", result, *what],
        cwd=ROOT, stderr=subprocess.PIPE, text=True)
    if told.returncode:
        sys.exit(f"{result} does not build:\n{told.stderr[:2000]}")


def linked(out, macros):
    """The implementation that the tests of tests/api with these macros share, and the macros."""
    macros = [m for m in macros if re.match("-D(GPUPOOL|CUDA_API)_", m)]
    name = re.sub("[^A-Za-z0-9_]", "", "-".join(macros)) or "plain"
    return out / f"linked-{name}.o", macros


def compile_program(options, out, name, source, macros):
    what = [out / source.relative_to(ROOT), *macros]
    if source.parent.name == "api":
        what += [linked(out, macros)[0], "-DLINKED=1"]
    compile_to(options, out, out / name, *what, HERE / "mutant.c", options.fake, "-lm")
    return Test(name, out / name)


def build(options, header):
    out = options.build / "mutants"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "tests", out / "tests",
                    ignore=shutil.ignore_patterns("traces", "mutants", "gpu", "bench"))
    (out / "gpupool.h").write_text(header)
    implementations = dict(linked(out, macros) for _, source, macros in variants()
                           if source.parent.name == "api")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda i: compile_to(options, out, i[0], *i[1], "-c",
                                           out / "tests" / "support" / "linked.c"),
                      implementations.items()))
        return out, list(pool.map(lambda v: compile_program(options, out, *v), variants()))


# ---- running ----

def limited(cpu_s):
    def prepare():
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
    return prepare


def run(test, environment, cpu_s, wall_s, log=subprocess.DEVNULL):
    """(whether it passed, seconds)"""
    before = time.monotonic()
    child = subprocess.Popen([test.program], cwd=ROOT, stdin=subprocess.DEVNULL,
                             stdout=log, stderr=log,
                             env={**os.environ, **environment}, preexec_fn=limited(cpu_s))
    try:
        child.wait(wall_s)
        passed = child.returncode == 0
    except subprocess.TimeoutExpired:
        passed = False
    try:
        os.killpg(child.pid, signal.SIGKILL)  # its children, if it left any
    except ProcessLookupError:
        pass
    child.wait()
    return passed, time.monotonic() - before


class Runner:
    def __init__(self, options, out, tests):
        self.options, self.out, self.tests = options, out, tests
        self.runs, self.kills = collections.Counter(), collections.Counter()  # by function, test
        self.reached, self.seconds = {}, {}

    def rehearse(self, test):
        """With all mutants asleep: which of them are reached, and how long does it take?"""
        path = self.out / f"{test.name}.reached"
        path.write_bytes(bytes(65536))
        log = self.out / f"{test.name}.out"
        with log.open("w") as file:
            passed, seconds = run(test, {"MUTANT_REACHED": str(path)}, 120, 300, file)
        if not passed:
            sys.exit(f"{test.name} fails without any mutant:\n{log.read_text()[-2000:]}")
        self.reached[test], self.seconds[test] = path.read_bytes(), seconds

    def kills_a_second(self, mutant, test):
        """What to hope for, by what this test did to others of the function."""
        at = mutant.function, test.name
        return (self.kills[at] + 0.5) / (self.runs[at] + 2) / self.seconds[test]

    def killer(self, mutant):
        """The test that kills it; None if all let it live, "" if none comes to it."""
        tests = [t for t in self.tests if self.reached[t][mutant.number]]
        tests.sort(key=lambda t: -self.kills_a_second(mutant, t))
        for test in tests:
            self.runs[mutant.function, test.name] += 1
            seconds = self.seconds[test]
            passed, _ = run(test, {"MUTANT": str(mutant.number)}, int(4 * seconds) + 2,
                            5 * seconds + 5)
            if not passed:
                self.kills[mutant.function, test.name] += 1
                return test.name
        return None if tests else ""


# ---- those that are the same program after all ----

class Compiled:
    """Object code: a mutant whose code is the header's is none."""

    def __init__(self, cutter, options):
        self.cutter, self.options = cutter, options
        self.original = self.code(cutter.text)

    def code(self, text):
        folder = self.options.build / "mutants" / f"code-{hash(text)}"
        folder.mkdir()
        (folder / "gpupool.h").write_text(text)
        flags = [f"-I{ROOT / f[2:]}" if f.startswith("-I") else f
                 for f in self.options.cuda.split()]
        subprocess.run(["gcc", "-std=c11", "-w", "-O1", "-DGPUPOOL_IMPLEMENTATION", "-c", "-x", "c",
                        *flags, "-o", "code.o", "-"], cwd=folder, check=True, text=True,
                       input='#include "gpupool.h"\n')
        code = (folder / "code.o").read_bytes()
        shutil.rmtree(folder)
        return code

    def is_same(self, mutant):
        return self.code(self.cutter.alone(mutant.number)) == self.original


def main():
    options = arguments()
    started = time.monotonic()
    cutter = cut.cut(ROOT / "gpupool.h", ROOT / "tests" / "support" / "library.c",
                     options.cuda.split())
    keys, known = keys_of(cutter.mutants), read_survivors()
    stale = sorted(set(known) - set(keys.values()))
    for key in stale:
        print(f"in {SURVIVORS.name}, but no mutant any more: {key}")
    chosen = [m for m in cutter.mutants if options.room.upper() in ("", m.room)
              and re.search(options.only, m.function)]
    if not options.whole and len(chosen) > options.count:
        # By name, so that a change of the header leaves the rest of the sample as it was.
        chosen.sort(key=lambda m: lot(options.seed, keys[m.number]))
        chosen = chosen[:options.count]
    listed = [m for m in chosen if keys[m.number] in known and not options.again]
    todo = [m for m in chosen if m not in set(listed)]
    print(f"{len(cutter.mutants)} mutants, {len(chosen)} chosen, {len(listed)} of them listed as "
          f"survivors", flush=True)
    if not chosen:
        sys.exit("no mutants to run")

    out, tests = build(options, cutter.header({m.number for m in todo}))
    runner = Runner(options, out, tests)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(runner.rehearse, tests))
        print(f"{len(tests)} test programs, {time.monotonic() - started:.0f} s so far", flush=True)
        killers = {}
        running = {pool.submit(runner.killer, m): m for m in todo}
        for future in concurrent.futures.as_completed(running):
            m = running[future]
            killers[m.number] = future.result()
            if not killers[m.number]:
                how = "is not reached" if killers[m.number] == "" else "survives"
                print(f"gpupool.h:{m.line}: {how}: {keys[m.number]}", flush=True)
        alive = [m for m in todo if not killers[m.number]]
        compiled = Compiled(cutter, options) if alive else None
        same = list(pool.map(compiled.is_same, alive)) if alive else []

    unknown = [m for m, is_same in zip(alive, same) if not is_same and keys[m.number] not in known]
    (out / "killers.txt").write_text("".join(
        f"{keys[m.number]}\t{killers[m.number] or 'none'}\n" for m in todo))
    (out / "survivors.txt").write_text("".join(
        f"{keys[m.number]}\n" for m in sorted(unknown, key=lambda m: m.number)))
    killed = len(todo) - len(alive)
    real = len(chosen) - sum(same)
    print(f"{killed} of {real} killed ({100 * killed / max(real, 1):.1f}%), {sum(same)} compile to "
          f"the same code, {real - killed - len(unknown)} listed, {len(unknown)} not: "
          f"{out / 'survivors.txt'}; {time.monotonic() - started:.0f} s")
    print(f"{killed} passed, {len(unknown) + (len(stale) if options.whole else 0)} failed")
    return 1 if unknown or (stale and options.whole) else 0


if __name__ == "__main__":
    sys.exit(main())
