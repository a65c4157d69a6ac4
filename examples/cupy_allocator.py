"""How does CuPy run on gpupool?

    import cupy_allocator
    cupy_allocator.install()

What to look at: running this file shows arrays in gpupool's memory, work on CuPy's streams, a limit
that raises CuPy's own exception, and gpupool's report. GPUPOOL_LIMIT=12GiB in the environment sets
a limit. Running it with --pytest runs CuPy's tests, or any others, on gpupool:
cupy_allocator.py --pytest -q tests/cupy_tests/core_tests
(--pytest-native: the same tests on CuPy's own pool, to compare).
"""

import ctypes
import os
import subprocess
import sys

import cupy

HERE = os.path.dirname(os.path.abspath(__file__))
HEADER = os.path.join(HERE, "..", "gpupool.h")
LIBRARY = os.path.join(HERE, "..", "build", "examples", "libgpupool.so")
CUDA_HOME = os.environ.get("CUDA_HOME") or "/usr/local/cuda"


def build():
    """The header is the library's whole source. Compiles it if need be, and returns the path."""
    if os.path.exists(LIBRARY) and os.path.getmtime(LIBRARY) > os.path.getmtime(HEADER):
        return LIBRARY
    made = f"{LIBRARY}.{os.getpid()}"
    command = [os.environ.get("CC") or "cc", "-O2", "-shared", "-fPIC", "-pthread", "-x", "c"]
    command += ["-DGPUPOOL_IMPLEMENTATION", HEADER, "-o", made, "-isystem", f"{CUDA_HOME}/include"]
    command += [f"-L{CUDA_HOME}/lib64", f"-Wl,-rpath,{CUDA_HOME}/lib64", "-lcudart"]
    os.makedirs(os.path.dirname(LIBRARY), exist_ok=True)
    subprocess.run(command, check=True)
    os.replace(made, LIBRARY)  # two processes may build at once
    return LIBRARY


class Pool:
    """malloc and free as cupy.cuda.PythonFunctionAllocator calls them; an arena for each device."""

    def __init__(self):
        pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
        self.library = ctypes.CDLL(build())
        for name, result, *arguments in (
                ("default_arena", pointer, ctypes.c_int), ("last_error", text),
                ("alloc", pointer, pointer, size, pointer),
                ("free", ctypes.c_int, pointer, pointer, pointer),
                ("get_limit", size, pointer), ("set_limit_text", ctypes.c_int, pointer, text),
                ("report", ctypes.c_int, pointer, pointer),
                ("get_stats", ctypes.c_int, pointer, pointer)):
            call = getattr(self.library, "gpupool_" + name)
            call.restype, call.argtypes = result, arguments
            setattr(self, name, call)
        self.live = {}  # address: the stream, kept from being destroyed while memory is tied to it

    def arena(self, device=0):
        arena = self.default_arena(device)
        if not arena:
            raise RuntimeError(self.last_error().decode())
        return arena

    def malloc(self, size, device):
        arena, stream = self.arena(device), cupy.cuda.get_current_stream()
        address = self.alloc(arena, size, stream.ptr)
        if address is None:
            why = MemoryError(self.last_error().decode())  # before another call
            requested = self.counters(device)["requested"]
            raise cupy.cuda.memory.OutOfMemoryError(
                size, requested, self.get_limit(arena)) from why
        self.live[address] = stream
        return address

    def free_block(self, address, device):
        """CuPy's own pool, too, gives memory back to the stream that it was allocated on."""
        stream = self.live.pop(address)
        if self.free(self.arena(device), address, stream.ptr) != 0:
            print("gpupool:", self.last_error().decode(), file=sys.stderr)

    def counters(self, device=0):
        """Bytes now: gpupool_stats begins with its size, then now, peak and total of each."""
        words = (ctypes.c_uint64 * 1024)()
        if self.get_stats(self.arena(device), words) != 0:
            raise RuntimeError(self.last_error().decode())
        return {"requested": words[1], "reserved": words[7], "pending": words[10]}


def install(pool=None):
    pool = pool or Pool()
    cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(pool.malloc, pool.free_block).malloc)
    return pool


class Plugin:
    """For pytest: gpupool again before each test, since some tests set CuPy's pool."""

    def __init__(self):
        self.pool = Pool()

    def pytest_runtest_setup(self, item):
        install(self.pool)

    def pytest_terminal_summary(self, terminalreporter):
        figures = ", ".join(f"{v} {k}" for k, v in self.pool.counters().items())
        terminalreporter.write_line(f"on gpupool: bytes {figures}")


def work_on_streams():
    """Each stream's sum is right although all of them take and free memory at once."""
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    sums = []
    for turn in range(50):
        with streams[turn % 4]:
            array = cupy.full(1 << 20, turn, dtype=cupy.float64)
            sums.append((turn, (array * 2 + 1).sum()))
    for stream in streams:
        stream.synchronize()
    wrong = [turn for turn, total in sums if float(total) != (2 * turn + 1) * (1 << 20)]
    if wrong:
        raise SystemExit(f"wrong sums in turns {wrong}")
    print("50 sums on 4 streams are right")


def main():
    pool = install()
    a = cupy.arange(16 << 20, dtype=cupy.float32)
    print(f"two arrays of 64 MiB sum up to {float((a + a).sum()):.6e}, pool: {pool.counters()}")
    work_on_streams()
    if pool.set_limit_text(pool.arena(), b"256MiB") != 0:
        raise SystemExit(pool.last_error().decode())
    try:
        cupy.zeros(64 << 20, dtype=cupy.float64)
        raise SystemExit("a limit of 256 MiB gave 512 MiB")
    except cupy.cuda.memory.OutOfMemoryError as error:
        print(f"CuPy says: {error}\ngpupool says: {error.__cause__}")
    del a
    libc = ctypes.CDLL(None)
    pool.report(pool.arena(), ctypes.c_void_p.in_dll(libc, "stdout"))
    libc.fflush(None)


if __name__ == "__main__":
    if sys.argv[1:2] in (["--pytest"], ["--pytest-native"]):
        import pytest
        sys.exit(pytest.main(sys.argv[2:], [Plugin()] if sys.argv[1] == "--pytest" else []))
    main()
