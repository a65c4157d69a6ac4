#!/usr/bin/env python3
"""The traces through PyTorch's allocators and cudaMallocAsync, on a GPU: torch_replay.py TRACE...

Prints lines of tests/bench/peers.txt: TRACE FIGURE, then PyTorch native, PyTorch with expandable
segments, cudaMallocAsync. The allocators are driven from C++ (torch_replay.cpp, built here). All
blocks are on one stream, but for the figures that begin with "streams": there block ID is on stream
ID mod 4, as in build/replay. Without PyTorch or a GPU it says so, prints nothing else, and has not
failed. --least adds the least budget, found by bisection, and the times at 1.02 times it.
"""

import argparse
import array
import ctypes
import glob
import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
STEP = 2 << 20  # of the bisection, in bytes
PASSES, MANY, STREAMS = 3, 20, 4
FIGURES = ["reserved", "reserved-20", "least", "cold", "warm", "squeezed-cold", "squeezed-warm",
           "streams-reserved", "streams-warm"]
RATIOS = ["reserved", "reserved-20", "least", "streams-reserved"]

# name, cudaMallocAsync, what PyTorch is told; each in a process of its own, since PyTorch reads its
# environment once
MODES = [
    ("native", 0, ""),
    ("expandable", 0, "expandable_segments:True"),
    ("async", 1, ""),
]


class LeftOut(Exception):
    """Why there is nothing to measure here."""


# ---- a trace ----


def read_trace(path):
    """Bytes (0: a free), slot and ID of each event in one array, slots, most live bytes."""
    ops, slot_of, size_of, free_slots = array.array("Q"), {}, {}, []
    slots = live = peak = 0
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt") as lines:
        for line in lines:
            word = line.split()
            if not word or word[0].startswith("#"):
                continue
            block = int(word[1])
            if word[0] == "a":
                if free_slots:
                    slot = free_slots.pop()
                else:
                    slot, slots = slots, slots + 1
                slot_of[block], size_of[block] = slot, int(word[2])
                live += size_of[block]
                peak = max(peak, live)
                ops.extend((size_of[block], slot, block))
            else:
                slot = slot_of.pop(block)
                live -= size_of.pop(block)
                free_slots.append(slot)
                ops.extend((0, slot, block))
    return ops, slots, peak


def trace_name(path):
    return os.path.basename(path).split(".")[0]


# ---- building and loading the C++ ----


def cuda_include(torch):
    """The directory of cuda_runtime_api.h: of a toolkit, or of the wheels that PyTorch brought."""
    nvcc = shutil.which("nvcc")
    site = os.path.dirname(os.path.dirname(torch.__file__))
    places = [os.environ.get("CUDA_HOME", "") + "/include"]
    if nvcc:
        places += [os.path.dirname(os.path.dirname(os.path.realpath(nvcc))) + "/include"]
    places += ["/usr/local/cuda/include"]
    places += glob.glob(site + "/nvidia/cu[0-9]*/include") + [site + "/nvidia/cuda_runtime/include"]
    for place in places:
        if os.path.exists(place + "/cuda_runtime_api.h"):
            return place
    raise LeftOut("no cuda_runtime_api.h")


def build(folder, torch):
    """The library's path. torch None: the dry one."""
    compiler = os.environ.get("CXX") or "g++"
    if not shutil.which(compiler):
        raise LeftOut("no C++ compiler")
    out = os.path.join(folder, "torch_replay.so")
    command = [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-o", out]
    if torch:
        include = os.path.join(os.path.dirname(torch.__file__), "include")
        abi = int(torch.compiled_with_cxx11_abi())
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={abi}", "-isystem", include]
        command += ["-isystem", cuda_include(torch)]
    else:
        command += ["-DTORCH_REPLAY_DRY"]
    made = subprocess.run(command + [HERE + "/torch_replay.cpp"], capture_output=True, text=True)
    if made.returncode:
        raise LeftOut("torch_replay.cpp does not compile:\n" + made.stderr[:3000])
    return out


def share_symbols():
    """The library is linked to nothing: it finds what PyTorch has loaded already, once that is
    visible to all."""
    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1] for line in maps if "/" in line}
    for name in ("libcudart", "libc10", "libc10_cuda"):
        for path in sorted(loaded):
            if os.path.basename(path).startswith(name + "."):
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


class Trace(ctypes.Structure):
    _fields_ = [("ops", ctypes.c_void_p), ("count", ctypes.c_uint64), ("slots", ctypes.c_uint64),
                ("streams", ctypes.c_uint64)]


class Figures(ctypes.Structure):
    _fields_ = [("cold", ctypes.c_double), ("warm", ctypes.c_double),
                ("reserved", ctypes.c_uint64)]


def load(path):
    call = ctypes.CDLL(path).torch_replay
    word = ctypes.c_uint64
    call.argtypes = [ctypes.c_int, ctypes.POINTER(Trace), word, ctypes.c_int,
                     ctypes.POINTER(Figures), ctypes.c_char_p, word]
    call.restype = ctypes.c_int
    return call


# ---- measuring, in the process of one mode ----


class Replay:
    """One trace through one allocator."""

    def __init__(self, call, is_async, path):
        self.call, self.is_async = call, is_async
        self.ops, self.slots, self.live = read_trace(path)

    def run(self, limit, passes, streams=0):
        """Figures, or None when memory was out. streams 0: all on the default stream."""
        figures, error = Figures(), ctypes.create_string_buffer(1000)
        address, words = self.ops.buffer_info()
        trace = Trace(address, words // 3, self.slots, streams)
        result = self.call(self.is_async, trace, limit, passes, figures, error, len(error))
        if result < 0:
            raise RuntimeError(error.value.decode(errors="replace"))
        return figures if result == 0 else None

    def least(self):
        """The smallest limit, in steps, under which one pass completes; as replay finds it."""
        first = -(-self.live // STEP)
        fails, enough = first - 1, first
        while not self.run(enough * STEP, 1):
            if enough > 8 * first + 8:
                return 0
            fails, enough = enough, 2 * enough - first + 1
        while enough - fails > 1:
            middle = (fails + enough) // 2
            if self.run(middle * STEP, 1):
                enough = middle
            else:
                fails = middle
        return enough * STEP

    def measure(self, with_least):
        figures = self.run(0, PASSES)
        if not figures:
            raise RuntimeError("out of memory without a limit")
        out = {"reserved": figures.reserved / self.live, "cold": figures.cold, "warm": figures.warm}
        many = self.run(0, MANY)
        if many:
            out["reserved-20"] = many.reserved / self.live
        spread = self.run(0, PASSES, STREAMS)
        if spread:
            out["streams-reserved"] = spread.reserved / self.live
            out["streams-warm"] = spread.warm
        least = self.least() if with_least else 0
        if least:
            out["least"] = least / self.live
            squeezed = self.run(int(least * 1.02), PASSES)
            if squeezed:
                out["squeezed-cold"], out["squeezed-warm"] = squeezed.cold, squeezed.warm
        return out


def open_torch(expandable):
    import torch

    torch.cuda.init()
    kept = torch.empty(1, device="cuda")
    segments = torch.cuda.memory_snapshot()
    if expandable and not any(s.get("is_expandable") for s in segments):
        raise RuntimeError("PyTorch does not use expandable segments here")
    del kept
    share_symbols()


def child(options):
    name, is_async, conf = next(m for m in MODES if m[0] == options.child)
    if not options.dry_run:
        open_torch("expandable" in conf)
    call = load(options.library)
    for path in options.traces:
        print(f"{trace_name(path)}, {name}", file=sys.stderr, flush=True)
        figures = Replay(call, is_async, path).measure(options.least)
        print(json.dumps([trace_name(path), figures]), flush=True)


# ---- the processes, and the table ----


def run_mode(options, library, name, conf):
    command = [sys.executable, os.path.abspath(__file__), "--child", name, "--library", library]
    command += ["--least"] if options.least else []
    command += ["--dry-run"] if options.dry_run else []
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_ALLOC_CONF")}
    if conf:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = conf
    ran = subprocess.run(command + options.traces, env=environment, stdout=subprocess.PIPE,
                         text=True)
    if ran.returncode:
        print(f"left out: {name}, which ended with status {ran.returncode}", file=sys.stderr)
    return dict(json.loads(line) for line in ran.stdout.splitlines() if line.startswith("["))


def print_peers(traces, by_mode):
    for trace in traces:
        for figure in FIGURES:
            values = [by_mode[name].get(trace, {}).get(figure) for name, _, _ in MODES]
            if any(v is not None for v in values):
                digits = 3 if figure in RATIOS else 0
                words = ["-" if v is None else f"{v:.{digits}f}" for v in values]
                print(trace, figure, *words)


def find_torch():
    if not importlib.util.find_spec("torch"):
        raise LeftOut("no PyTorch in " + sys.executable)
    import torch

    if not torch.cuda.is_available():
        raise LeftOut("PyTorch sees no GPU")
    return torch


def parent(options):
    torch = None if options.dry_run else find_torch()
    with tempfile.TemporaryDirectory() as folder:
        library = build(folder, torch)
        by_mode = {name: run_mode(options, library, name, conf) for name, _, conf in MODES}
    if not any(by_mode.values()):
        raise LeftOut("no allocator could be measured")
    if torch:
        device = torch.cuda.get_device_name()
        print(f"# measured in this run with PyTorch {torch.__version__} on {device}")
    else:
        print("# made up, in a dry run")
    print_peers([trace_name(path) for path in options.traces], by_mode)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--least", action="store_true", help="also find the least budget")
    parser.add_argument("--dry-run", action="store_true", help="without PyTorch: made-up figures")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options)
    try:
        parent(options)
    except LeftOut as why:
        print(f"left out: PyTorch's allocators ({why})", file=sys.stderr)
    return None


if __name__ == "__main__":
    main()
