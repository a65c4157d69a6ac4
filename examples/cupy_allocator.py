"""How does CuPy run on gpupool? Before any array is made:

    import cupy_allocator
    cupy_allocator.install()

install() builds the header as a library, anew when it has changed. Each device's arrays are in its
default arena, and the pinned memory through which CuPy uploads in the process's pinned one.
GPUPOOL_LIMIT=12GiB in the environment is a limit, and GPUPOOL_REPORT=report.txt gets reports.
Run by itself, this file prints what two arrays take and what CuPy and gpupool say of one that is
too large, and adds up arrays on four streams.
"""

import ctypes
import os
import subprocess
import sys
import tempfile

import cupy

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.environ.get("GPUPOOL_INCLUDE") or os.path.dirname(HERE)  # where gpupool.h is
CUDA_HOME = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
PINNED, NO_STREAM = -2, ctypes.c_void_p(-1)  # in gpupool.h: GPUPOOL_PINNED, GPUPOOL_NO_STREAM


def build():
    """The header is the library's whole source. Returns the library's path. CuPy destroys streams
    behind our back, so gpupool is to ask CUDA for their ids."""
    header = os.path.join(INCLUDE, "gpupool.h")
    path = os.path.join(tempfile.gettempdir(), f"libgpupool-{os.getuid()}.so")
    if os.path.exists(path) and os.path.getmtime(path) > os.path.getmtime(header):
        return path
    made = f"{path}.{os.getpid()}"
    command = [os.environ.get("CC") or "cc", "-O2", "-shared", "-fPIC", "-pthread", "-x", "c"]
    command += ["-DGPUPOOL_IMPLEMENTATION", "-DGPUPOOL_STREAM_CHECK=1", header, "-o", made]
    command += ["-isystem", f"{CUDA_HOME}/include"]
    command += [f"-L{CUDA_HOME}/lib64", f"-Wl,-rpath,{CUDA_HOME}/lib64", "-lcudart"]
    subprocess.run(command, check=True)
    os.replace(made, path)  # two processes may build at once
    return path


class PinnedBlock:
    """What cupy.cuda.PinnedMemoryPointer points into. CuPy keeps it until its copies are done."""

    def __init__(self, pool, size):
        self.pool, self.size = pool, size
        self.ptr = pool.alloc(pool.arena(PINNED), size, NO_STREAM) if size else 0
        if self.ptr is None:
            raise cupy.cuda.runtime.CUDARuntimeError(2)  # memory is out: CuPy goes on without

    def __del__(self):
        if self.ptr:
            self.pool.free(self.pool.arena(PINNED), self.ptr, NO_STREAM)


class Pool:
    """malloc and free as cupy.cuda.PythonFunctionAllocator calls them."""

    def __init__(self):
        pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
        library = ctypes.CDLL(build())
        for name, result, *arguments in (
                ("get_default_arena", pointer, ctypes.c_int), ("last_error", text),
                ("alloc", pointer, pointer, size, pointer),
                ("free", ctypes.c_int, pointer, pointer, pointer),
                ("trim", ctypes.c_int, pointer, size), ("report", ctypes.c_int, pointer, pointer),
                ("set_limit_text", ctypes.c_int, pointer, text),
                ("get_stats", ctypes.c_int, pointer, pointer)):
            call = getattr(library, "gpupool_" + name)
            call.restype, call.argtypes = result, arguments
            setattr(self, name, call)
        self.live = {}  # address: the stream, which must not end while memory is tied to it

    def must(self, result):
        if result != 0:
            raise RuntimeError(self.last_error().decode())

    def arena(self, device=0):
        arena = self.get_default_arena(device)
        self.must(0 if arena else 1)
        return arena

    def malloc(self, size, device):
        arena, stream = self.arena(device), cupy.cuda.get_current_stream()
        address = self.alloc(arena, size, stream.ptr)
        if address is None:
            why = MemoryError(self.last_error().decode())  # before another call
            has = self.stats(device)
            raise cupy.cuda.memory.OutOfMemoryError(size, has["requested"], has["limit"]) from why
        self.live[address] = stream
        return address

    def free_block(self, address, device):
        """CuPy's own pool, too, gives memory back to the stream that it was allocated on."""
        stream = self.live.pop(address)
        if self.free(self.arena(device), address, stream.ptr) != 0:
            print("gpupool:", self.last_error().decode(), file=sys.stderr)

    def pinned(self, size):
        return cupy.cuda.PinnedMemoryPointer(PinnedBlock(self, size), 0)

    def stats(self, device=0):
        """Some of gpupool_stats, whose words are pairs of now and peak at first."""
        words = (ctypes.c_uint64 * 64)()
        self.must(self.get_stats(self.arena(device), words))
        return {"requested": words[0], "reserved": words[4], "pending": words[6],
                "limit": words[12]}


def install():
    pool = Pool()
    cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(pool.malloc, pool.free_block).malloc)
    cupy.cuda.set_pinned_memory_allocator(pool.pinned)
    return pool


def wrong_sums():
    """Of 50 on four streams, all of which take and free memory at once."""
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    sums = []
    for turn in range(50):
        with streams[turn % 4]:
            sums.append((cupy.full(1 << 20, turn, dtype=cupy.float64) * 2 + 1).sum())
    cupy.cuda.Device().synchronize()
    return [turn for turn, total in enumerate(sums) if float(total) != (2 * turn + 1) * (1 << 20)]


def main():
    pool = install()
    a = cupy.arange(16 << 20, dtype=cupy.float32)
    print(f"two arrays of 64 MiB sum up to {float((a + a).sum()):.6e}, bytes: {pool.stats()}")
    if wrong_sums() or (cupy.array(cupy.asnumpy(a)) != a).any():
        sys.exit("memory in use was given away")
    print(f"pinned, for an upload: {pool.stats(PINNED)['reserved']} bytes")
    pool.must(pool.set_limit_text(pool.arena(), b"256MiB"))
    try:
        cupy.zeros(64 << 20, dtype=cupy.float64)
        sys.exit("a limit of 256 MiB gave 512 MiB")
    except cupy.cuda.memory.OutOfMemoryError as error:
        print(f"CuPy says: {error}\ngpupool says: {error.__cause__}")


if __name__ == "__main__":
    main()
