"""How does PyTorch run on gpupool? Before anything uses CUDA:

    import pytorch_allocator
    pytorch_allocator.install()

What to look at: running this file shows tensors in gpupool's memory, a limit that raises PyTorch's
own exception, what empty_cache gives back, and a tensor that another stream uses. install() builds
the library from pytorch_allocator.cpp if the library is missing or old. GPUPOOL_LIMIT=12GiB in the
environment sets a limit, and so does torch.cuda.set_per_process_memory_fraction. Ask gpupool for
statistics (memory() below): torch.cuda has none of a pluggable allocator. pytorch_graphs.py
captures a training step.
"""

import ctypes
import os
import subprocess
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = [os.path.join(HERE, name) for name in
           ("pytorch_allocator.cpp", "pytorch_graphs.hpp", os.path.join("..", "gpupool.h"))]
LIBRARY = os.path.join(HERE, "..", "build", "examples", "pytorch_allocator.so")
CUDA_HOME = os.environ.get("CUDA_HOME") or "/usr/local/cuda"

library = None


def build():
    """Compiles the library if need be, and returns its path."""
    newest = max(os.path.getmtime(path) for path in SOURCES)
    if os.path.exists(LIBRARY) and os.path.getmtime(LIBRARY) > newest:
        return LIBRARY
    torch_home = os.path.dirname(torch.__file__)
    made = f"{LIBRARY}.{os.getpid()}"
    command = [os.environ.get("CXX") or "c++", "-std=c++17", "-O2", "-shared", "-fPIC", "-pthread"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += ["-I" + os.path.join(HERE, ".."), "-isystem", f"{CUDA_HOME}/include"]
    command += ["-isystem", f"{torch_home}/include", SOURCES[0], "-o", made]
    command += [f"-L{CUDA_HOME}/lib64", "-lcudart", f"-L{torch_home}/lib", "-lc10"]
    command += [f"-Wl,-rpath,{torch_home}/lib", f"-Wl,-rpath,{CUDA_HOME}/lib64"]
    os.makedirs(os.path.dirname(LIBRARY), exist_ok=True)
    subprocess.run(command, check=True)
    os.replace(made, LIBRARY)  # two processes may build at once
    return LIBRARY


def install():
    """Makes gpupool the allocator of CUDA tensors in this process."""
    global library
    path = build()
    library = ctypes.CDLL(path)

    def address(name):
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value

    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        path, "gpupool_torch_alloc", "gpupool_torch_free")
    calls = allocator.allocator()
    calls.set_record_stream_fn(address("gpupool_torch_record_stream"))
    calls.set_reset_fn(address("gpupool_torch_empty_cache"))
    calls.set_memory_fraction_fn(address("gpupool_torch_fraction"))
    calls.set_begin_allocate_to_pool(address("gpupool_torch_begin_pool"))
    calls.set_end_allocate_to_pool_fn(address("gpupool_torch_end_pool"))
    calls.set_release_pool(address("gpupool_torch_release_pool"))
    torch.cuda.memory.change_current_allocator(allocator)


def memory(device=0):
    """Bytes of this device's arena: gpupool_stats begins with its size, then now, peak, total."""
    words = (ctypes.c_uint64 * 1024)()
    library.gpupool_torch_arena.restype = ctypes.c_void_p
    arena = ctypes.c_void_p(library.gpupool_torch_arena(device))
    if library.gpupool_get_stats(arena, words) != 0:
        raise RuntimeError(f"no tensor has been on device {device} yet")
    return {"requested": words[1], "requested_peak": words[2],
            "reserved": words[7], "reserved_peak": words[8]}


def show(what):
    mib = {name: value / 2**20 for name, value in memory().items()}
    print(f"{what:44} requested {mib['requested']:8.1f} MiB, reserved {mib['reserved']:8.1f} MiB")


def lend_to_another_stream():
    """The tensor dies while another stream still reads it; its memory must not be given away."""
    side = torch.cuda.Stream()
    ones = torch.ones(16 << 20, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        total = ones.sum()
    ones.record_stream(side)
    del ones
    torch.full((16 << 20,), 7.0, device="cuda")  # takes the same memory if anything lets it
    torch.cuda.synchronize()
    if total.item() != 16 << 20:
        raise SystemExit(f"memory in use by another stream was given away: {total.item()}")


def main():
    install()
    kept = torch.zeros(64 << 20, device="cuda")
    show("256 MiB of zeros")
    torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    show("512 MiB more, and freed")
    torch.cuda.empty_cache()
    show("after empty_cache")

    torch.cuda.set_per_process_memory_fraction(0.05)
    size = torch.cuda.get_device_properties(0).total_memory // 10
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
        raise SystemExit("a limit of 5% gave 10%")
    except torch.OutOfMemoryError as error:
        print(f"a tenth of the device, 5% being allowed:\n    {str(error).splitlines()[0]}")
    kept += 1
    if kept.sum().item() != 64 << 20:
        raise SystemExit("a tensor changed when another could not be had")
    torch.cuda.set_per_process_memory_fraction(1.0)

    lend_to_another_stream()
    show("after a tensor was lent to another stream")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("needs a GPU")
    main()
