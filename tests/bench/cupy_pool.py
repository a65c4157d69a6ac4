#!/usr/bin/env python3
"""CuPy's memory pool on a GPU, called from Python as its users do: lines for build/bench-run.

The works have the ids, sizes and live blocks of works.c. The interpreter's time is in the figures:
it is what a program in Python pays. Without CuPy or a GPU the only line says so.
"""

import random
import sys
import time

RUNS = 7
RUN_SECONDS = 0.05
KIB = 1024


def sizes_of(least, most, count):
    """Log-uniform, as in works.c."""
    doublings = max((most // least).bit_length() - 1, 0)
    draw = random.Random(1)
    out = []
    for _ in range(count):
        low = least << draw.randrange(doublings) if doublings else least
        out.append(draw.randint(low, min(low * 2, most)))
    return out


def pairs(malloc, live, sizes, victims, count):
    size = sizes[0]
    for _ in range(count):
        block = malloc(size)
        del block


def churn(malloc, live, sizes, victims, count):
    for at, size in zip(victims[:count], sizes[:count]):
        live[at] = None
        live[at] = malloc(size)


def pairs_each(malloc, live, sizes, victims, count):
    now, out, size = time.perf_counter_ns, [], sizes[0]
    for _ in range(count):
        start = now()
        block = malloc(size)
        del block
        out.append(now() - start)
    return out


def churn_each(malloc, live, sizes, victims, count):
    now, out = time.perf_counter_ns, []
    for at, size in zip(victims[:count], sizes[:count]):
        start = now()
        live[at] = None
        middle = now()
        live[at] = malloc(size)
        out += [middle - start, now() - middle]
    return out


# id, live blocks, least and most bytes, the loop, the same with a clock, operations in a step
WORKS = [
    ("pair", 0, 4 * KIB, 4 * KIB, pairs, pairs_each, 1),
    ("pair-live", 4096, 4 * KIB, 4 * KIB, pairs, pairs_each, 1),
    ("churn-16k", 16384, 512, 64 * KIB, churn, churn_each, 2),
    ("live-1k", 1024, 512, 256 * KIB, churn, churn_each, 2),
]


def measure(cupy, work):
    name, n_live, least, most, loop, loop_each, in_step = work
    pool = cupy.cuda.MemoryPool()
    steps = 200000
    sizes = sizes_of(least, most, steps)
    draw = random.Random(2)
    victims = [draw.randrange(n_live) if n_live else 0 for _ in range(steps)]
    live = [pool.malloc(sizes[i % steps]) for i in range(n_live)]

    def seconds(count):
        start = time.perf_counter()
        loop(pool.malloc, live, sizes, victims, count)
        return time.perf_counter() - start

    seconds(min(8 * n_live + 1000, steps))
    count = int(min(steps, max(100, RUN_SECONDS / (seconds(1000) / 1000))))
    ns = sorted(seconds(count) / count / in_step * 1e9 for _ in range(RUNS))
    each = sorted(loop_each(pool.malloc, live, sizes, victims, count))
    tail = [each[min(int(len(each) * share), len(each) - 1)] for share in (0.5, 0.99, 0.999, 1)]
    del live
    pool.free_all_blocks()
    figures = [ns[RUNS // 2], ns[0], ns[-1], count, len(each)] + tail
    print("\t".join(["CuPy", name] + [f"{value:.0f}" for value in figures]), flush=True)


def main():
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception as why:  # a missing library, driver or GPU: each has its own kind
        first = (str(why).strip().splitlines() or [type(why).__name__])[0]
        print(f"left out\tCuPy: {first[:150]}, says {sys.executable}")
        return
    for work in WORKS:
        measure(cupy, work)


if __name__ == "__main__":
    main()
