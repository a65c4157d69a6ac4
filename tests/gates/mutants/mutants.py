"""Do the tests notice a header with one small mistake in it?  mutants.py [--whole] [--help]

cut.py cuts thousands of mutants into one copy of gpupool.h, all asleep; a test program is built
once with it, when a mutant first wants it, and MUTANT=number wakes one. A mutant is run by the
tests that come to it, the likely and quick ones first, until one of them fails, crashes or takes
far too long: it is killed. One that survives them all, or as many as there is time for, stands in
survivors.txt, with the reason, or this gate fails. It fails, too, on a line of survivors.txt that
is of no mutant."""
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
import tempfile
import threading
import time

import cut

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
SURVIVORS = HERE / "survivors.txt"
QUICK_COMPILER = shutil.which("clang") or "gcc"  # clang takes half as long
# Left out: those that repeat others at length, or need a build of their own. Made small: those that
# take whatever time they get.
LEFT_OUT = ("test_soak", "test_churn", "test_counted", "test_tree_long", "test_fuzz",
            "test_schedules", "test_schedules_ends", "test_schedules_mapped", "test_schedules_ring")
SMALL = {"test_tree": ["-DFEW_UNITS=5"], "test_model": ["-DMODEL_CALLS=100000"],
         "test_stitch_faults": ["-DAFTER=6"], "test_tree_misuse": ["-DMISUSE_UNITS=6"],
         "test_races": ["-DSCHEDULES=400", "-DTURNS=400"]}
BESIDE = ("single", "asked", "replaced", "digit", "wrong")  # builds run beside the first of theirs
STATIC = "-DGPUPOOL_STATIC=1"


class Test:
    """A test program: what it is made of, and what is known once it was built and run."""

    def __init__(self, name, source, level, macros):
        self.name, self.source, self.level, self.macros = name, source, level, macros
        self.text = source.read_text()
        self.lock = threading.Lock()
        self.seconds = 1.0  # with all mutants asleep; this is a guess
        self.reached = None  # a byte for each mutant; empty: the program fails without any


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--whole", action="store_true", help="every mutant")
    parser.add_argument("--count", type=int, default=200, help="a sample of so many")
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--first", type=int, default=0, help="leave so many of the sample out")
    parser.add_argument("--room", default="", help="of this room only, as in its banner")
    parser.add_argument("--only", default="", help="of functions that match, as a pattern")
    parser.add_argument("--named", type=pathlib.Path,
                        help="those whose names are in this file, as the last run's survivors.txt")
    parser.add_argument("--tests", default="", help="by tests that match only, as a pattern")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--again", action="store_true",
                        help="run those in survivors.txt too: a listed one that is killed fails")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one mutant")
    parser.add_argument("--within", type=float, default=float("inf"),
                        help="seconds after which no further mutant is begun")
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


def choose(cutter, keys, options):
    """In an order drawn by name, so that a change of the header leaves the rest as it was."""
    chosen = [m for m in cutter.mutants if options.room.upper() in ("", m.room)
              and re.search(options.only, m.function)]
    chosen.sort(key=lambda m: lot(options.seed, keys[m.number]))
    if options.named:
        names = set(options.named.read_text().splitlines())
        return [m for m in chosen if keys[m.number] in names]
    return chosen if options.whole else chosen[options.first:options.first + options.count]


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
    """The plain or first build of each test, and those with other checks. Where a test has no
    threads there are no locks either, but asserts that each is taken and given back."""
    for source in sorted((ROOT / "tests").glob("*/test_*.c"), key=lambda path: path.name):
        if source.stem in LEFT_OUT:
            continue
        text = source.read_text()
        builds = dict(re.findall(r"^// build: (\S+) *(.*)$", text, re.M)) or {"plain": ""}
        first = "plain" if "plain" in builds else next(iter(builds))
        alone = ["-DGPUPOOL_SINGLE_THREAD=1"] * (
            not re.search("pthread|sched_yield|_pause|__atomic_|^test_(ring|host|spin)",
                          source.stem + text))
        for name, flags in builds.items():
            macros = [f for f in flags.split() if f.startswith("-D") and "EVERY" not in f]
            macros += SMALL.get(source.stem, []) + alone
            # Most run for less time than optimizing would take; those that do not say so.
            level = "-O1" if re.search(r"-O\d", flags) else "-O0"
            if name == first or name in BESIDE:
                yield Test(f"{source.stem}-{name}", source, level, macros)


def beside(source):
    """What else a test is linked with."""
    return re.findall(r"\S+", " ".join(re.findall(r"^// and: *(.*)$", source.read_text(), re.M)))


def compile_to(options, out, level, result, *what):
    compiler = QUICK_COMPILER if level == "-O0" else "gcc"
    told = subprocess.run(
        [compiler, "-std=c11", "-w", level, "-pthread", "-DCHECK_STOP=1", *options.cuda.split(),
         f"-I{out}", f"-I{out}/tests", f"-I{out}/tests/support", f"-I{HERE}", "-o", result, *what],
        cwd=ROOT, stderr=subprocess.PIPE, text=True)
    if told.returncode:
        sys.exit(f"{result} does not build:\n{told.stderr[:2000]}")


class Builder:
    """Builds programs and the implementations that they share, each when it is first wanted."""

    def __init__(self, options, header):
        self.options, self.out = options, options.build / "mutants"
        self.locks = {}
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.copytree(ROOT / "tests", self.out / "tests",
                        ignore=shutil.ignore_patterns("traces", "mutants", "gpu", "bench"))
        (self.out / "gpupool.h").write_text(header)

    def linked(self, level, macros):
        """The implementation that tests of tests/api share."""
        macros = [m for m in macros if re.match("-D(GPUPOOL|CUDA_API)_", m)]
        name = re.sub("[^A-Za-z0-9_]", "", "-".join([level, *macros]))
        result = self.out / f"linked-{name}.o"
        with self.locks.setdefault(result, threading.Lock()):
            if not result.exists():
                compile_to(self.options, self.out, level, result, *macros, "-c",
                           self.out / "tests" / "support" / "linked.c")
        return result

    def program(self, test):
        what = [self.out / path for path in (test.source.relative_to(ROOT), *beside(test.source))]
        # Private functions that a test of tests/unit does not come to are static, and take no time.
        how = [STATIC]
        if test.source.parent.name == "api":
            how = [self.linked(test.level, test.macros), "-DLINKED=1"]
        compile_to(self.options, self.out, test.level, self.out / test.name, *what, *how,
                   *test.macros, HERE / "mutant.c", self.options.fake, "-lm")


# ---- running ----

def limited(cpu_s):
    def prepare():
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
    return prepare


def run(program, environment, cpu_s, wall_s, log=subprocess.DEVNULL):
    """(whether it passed, seconds)"""
    before = time.monotonic()
    child = subprocess.Popen([program], cwd=ROOT, stdin=subprocess.DEVNULL,
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
    def __init__(self, options, builder):
        self.options, self.builder = options, builder
        self.tests = [t for t in variants() if re.search(options.tests, t.name)]
        self.runs, self.kills = collections.Counter(), collections.Counter()  # by place

    def reaches(self, test, mutant):
        """Whether the test comes to the mutant: all that it reaches is known when it is built."""
        with test.lock:
            if test.reached is None:
                self.builder.program(test)
                test.reached = self.rehearse(test)
        return bool(test.reached) and test.reached[mutant.number]

    def rehearse(self, test):
        """With all mutants asleep: which of them are reached, and how long does it take?"""
        path = self.builder.out / f"{test.name}.reached"
        path.write_bytes(bytes(65536))
        log = self.builder.out / f"{test.name}.out"
        with log.open("w") as file:
            passed, test.seconds = run(self.builder.out / test.name,
                                       {"MUTANT_REACHED": str(path)}, 120, 300, file)
        if passed:
            return path.read_bytes()
        print(f"{test.name} fails without any mutant:\n{log.read_text()[-2000:]}", flush=True)
        return b""

    def places(self, mutant, test):
        """Whose record says something about the two, the least telling first."""
        return (test.name,), (mutant.room, test.name), (mutant.function, test.name)

    def kills_a_second(self, mutant, test):
        """What to hope for: at first by whether the test names the function, or is of its room;
        then by what it did to others, to others of the room, and of the function."""
        hope = 0.15
        if mutant.function in test.text:
            hope = 0.6
        elif mutant.room.lower() in test.name:
            hope = 0.3
        for place in self.places(mutant, test):
            hope = (self.kills[place] + 2 * hope) / (self.runs[place] + 2)
        return hope / (0.01 + test.seconds)

    def note(self, mutant, test, passed):
        for place in self.places(mutant, test):
            self.runs[place] += 1
            self.kills[place] += not passed

    def killer(self, mutant):
        """(the test that kills it or "", seconds, why it lives: nobody comes to it, or how many let
        it live). None where time is up."""
        if CLOCK.seconds() > self.options.within:
            return None
        spent, reached, tried = 0, 0, 0
        for test in sorted(self.tests, key=lambda t: -self.kills_a_second(mutant, t)):
            if not self.reaches(test, mutant):
                continue
            seconds, reached = test.seconds, reached + 1
            if tried and spent + seconds > self.options.limit:
                continue
            passed, took = run(self.builder.out / test.name, {"MUTANT": str(mutant.number)},
                               int(4 * seconds) + 2, 5 * seconds + 5)
            spent, tried = spent + took, tried + 1
            self.note(mutant, test, passed)
            if not passed:
                return test.name, spent, ""
        why = f"survives {tried} of {reached} tests" if reached else "is not reached"
        return "", spent, why


# ---- those that are the same program after all ----

class Compiled:
    """Object code: a mutant whose code is the header's is none."""

    def __init__(self, cutter, options):
        self.cutter, self.options = cutter, options

    def code(self, text, function):
        """Of a function and what it calls."""
        with tempfile.TemporaryDirectory(dir=self.options.build / "mutants") as folder:
            (pathlib.Path(folder) / "gpupool.h").write_text(text)
            flags = [f"-I{ROOT / f[2:]}" if f.startswith("-I") else f
                     for f in self.options.cuda.split()]
            subprocess.run(["gcc", "-std=c11", "-w", "-O1", "-DGPUPOOL_IMPLEMENTATION", STATIC,
                            "-c", "-x", "c", *flags, "-o", "code.o", "-"], cwd=folder, check=True,
                           text=True, input='#include "gpupool.h"\n'
                           f"void *kept(void) {{ return (void *){function}; }}\n")
            return (pathlib.Path(folder) / "code.o").read_bytes()

    def is_same(self, mutant):
        return (self.code(self.cutter.alone(mutant.number), mutant.function) ==
                self.code(self.cutter.text, mutant.function))


# ---- what is said ----

class Clock:
    """Seconds of CPU that this and all it has run have taken, from one lap to the next."""

    def __init__(self):
        self.laps, self.before, self.started = {}, 0, time.monotonic()

    def lap(self, name):
        who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
        now = sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, who))
        self.laps[name], self.before = now - self.before, now

    def seconds(self):
        return time.monotonic() - self.started

    def told(self):
        laps = ", ".join(f"{name} {seconds:.0f}" for name, seconds in self.laps.items())
        return f"seconds of CPU: {laps}; {self.seconds():.0f} s in all"


def stale_lines(known, keys):
    """Lines of survivors.txt that are of no mutant: each is told."""
    stale = [key for key in known if key not in set(keys.values())]
    for key in stale:
        print(f"in {SURVIVORS.name}, but of no mutant: {key}")
    return len(stale)


def wake_each(options, builder, todo, tell):
    """tell(mutant, killer, seconds, why) for each. How many tests fail with all asleep."""
    runner = Runner(options, builder)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(runner.killer, m): m for m in todo}
        for future in concurrent.futures.as_completed(running):
            if future.result():
                tell(running[future], *future.result())
    CLOCK.lap("building and runs")
    built = [t for t in runner.tests if t.reached]
    (builder.out / "tests.txt").write_text("".join(f"{t.seconds:.2f} {t.name}\n" for t in built))
    print(f"{len(built)} of {len(runner.tests)} test programs were wanted")
    return sum(t.reached == b"" for t in runner.tests)


class Outcome:
    """What became of the mutants that were tried."""

    def __init__(self, cutter, keys, listed):
        self.lines, self.keys, self.listed = cutter.text.split("\n"), keys, listed
        self.killers, self.survivors = {}, []
        self.wrong = 0  # listed, and killed

    def line(self, m, why):
        return (f"gpupool.h:{m.line}: {why}: {self.keys[m.number]}    "
                f"| {self.lines[m.line - 1].strip()}")

    def add(self, m, killer, seconds, why):
        self.killers[m.number] = f"{seconds:.1f} s\t{killer or 'none'}"
        if not killer:
            self.survivors.append((m, why))
        if killer and m in self.listed:
            self.wrong += 1
            why = f"is listed, and {killer} kills it"
        if bool(killer) == (m in self.listed):
            print(self.line(m, why), flush=True)

    def unlisted(self):
        return [(m, why) for m, why in self.survivors if m not in self.listed]

    def write(self, out, unknown):
        (out / "killers.txt").write_text("".join(
            f"{self.keys[number]}\t{killer}\n" for number, killer in sorted(self.killers.items())))
        (out / "survivors.txt").write_text("".join(f"{self.keys[m.number]}\n" for m, _ in unknown))
        print(f"{len(unknown)} survive, and are neither listed nor the same code "
              f"({out / 'survivors.txt'}):")
        for m, why in unknown:
            print(self.line(m, why))


def main():
    options = arguments()
    cutter = cut.cut(ROOT / "gpupool.h", ROOT / "tests" / "support" / "library.c",
                     options.cuda.split(), options.build / "mutants.json")
    CLOCK.lap("cutting")
    keys, known = keys_of(cutter.mutants), read_survivors()
    stale = stale_lines(known, keys)
    chosen = choose(cutter, keys, options)
    listed = {m for m in chosen if keys[m.number] in known}
    todo = [m for m in chosen if m not in listed or options.again]
    print(f"{len(cutter.mutants)} mutants, {len(chosen)} chosen, {len(listed)} of them listed as "
          f"survivors, {len(todo)} to try", flush=True)
    if not todo:
        print(f"0 passed, {stale} failed")
        return 1 if stale else 0

    builder = Builder(options, cutter.header({m.number for m in todo}))
    outcome = Outcome(cutter, keys, listed)
    failing = wake_each(options, builder, todo, outcome.add)
    unlisted = outcome.unlisted()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        same = list(pool.map(Compiled(cutter, options).is_same, [m for m, _ in unlisted]))
    CLOCK.lap("comparing")
    unknown = sorted((m.number, m, why) for (m, why), is_same in zip(unlisted, same) if not is_same)
    outcome.write(builder.out, [(m, why) for _, m, why in unknown])
    tried, alive = len(outcome.killers), len(outcome.survivors)
    print(f"of {tried} tried, {tried - alive} were killed, {sum(same)} compile to the same code, "
          f"{alive - len(unlisted)} survive as listed, {len(unknown)} survive unlisted; not tried: "
          f"{len(chosen) - len(todo)} that are listed, {len(todo) - tried} for want of time")
    print(CLOCK.told())
    failed = len(unknown) + outcome.wrong + failing + stale
    print(f"{tried - alive} passed, {failed} failed")
    return 1 if failed else 0


CLOCK = Clock()
if __name__ == "__main__":
    sys.exit(main())
