"""How does PyTorch run on gpupool? Before anything uses CUDA:

    import pytorch_allocator
    pytorch_allocator.install()

Or leave a program as it is: python3 pytorch_allocator.py PROGRAM [ARGUMENT...]

install() builds pytorch_allocator.cpp as PyTorch builds its extensions (ninja and a C++ compiler
are needed), anew when it has changed. Then torch.cuda's memory_allocated, memory_stats,
memory_summary, reset_peak_memory_stats, empty_cache and set_per_process_memory_fraction are about
gpupool's memory; Tensor.record_stream and torch.cuda.graph work; and GPUPOOL_LIMIT=12GiB in the
environment is a limit. What PyTorch has no hooks for stays out: snapshots, MemPool.
Run by itself, this file prints what tensors take, the message of one too many, and that a captured
training step gives the weights of one that is not captured.
"""

import ctypes
import os
import runpy
import sys

import torch
from torch.utils.cpp_extension import load

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.environ.get("GPUPOOL_INCLUDE") or os.path.dirname(HERE)  # where gpupool.h is

WORDS = ("requested requested_peak allocated allocated_peak reserved reserved_peak pending "
         "pending_peak blocks free_blocks chunks stitches limit asleep host allocs frees failures "
         "stitched reused driver_calls marks stream_waits host_waits").split()  # of gpupool_stats


def install():
    """Makes gpupool the allocator of CUDA tensors in this process."""
    path = load("gpupool_torch", os.path.join(HERE, "pytorch_allocator.cpp"), with_cuda=True,
                extra_include_paths=[INCLUDE], extra_cflags=["-O2"], is_python_module=False)
    library = ctypes.CDLL(path)

    def address(name):
        return ctypes.cast(getattr(library, "gpupool_torch_" + name), ctypes.c_void_p).value

    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        path, "gpupool_torch_alloc", "gpupool_torch_free")
    calls = allocator.allocator()
    calls.set_record_stream_fn(address("record_stream"))
    calls.set_reset_fn(address("empty_cache"))
    calls.set_memory_fraction_fn(address("fraction"))
    calls.set_begin_allocate_to_pool(address("begin_pool"))
    calls.set_end_allocate_to_pool_fn(address("end_pool"))
    calls.set_release_pool(address("release_pool"))
    torch.cuda.memory.change_current_allocator(allocator)
    # PyTorch asks a pluggable allocator for no statistics: its own calls would raise an exception.
    torch._C._cuda_memoryStats = lambda device: memory_stats(library, device)
    # of Python: torch._dynamo puts PyTorch's calls into a set, and those of ctypes have no hash
    torch._C._cuda_resetPeakMemoryStats = lambda device: library.gpupool_torch_reset_peaks(device)


def memory_stats(library, device):
    """What torch.cuda.memory_stats() returns. Zeros: what gpupool does not tell apart."""
    numbers = (ctypes.c_uint64 * len(WORDS))()
    library.gpupool_torch_stats(device, numbers)
    has = dict(zip(WORDS, numbers))

    def one(now=0, peak=0, gained=0, lost=0):
        return {"current": now, "peak": max(now, peak), "allocated": gained, "freed": lost}

    def stat(*figures):
        return {"all": one(*figures), "large_pool": one(), "small_pool": one()}

    return {
        "requested_bytes": stat(has["requested"], has["requested_peak"]),
        "allocated_bytes": stat(has["allocated"], has["allocated_peak"]),
        "reserved_bytes": stat(has["reserved"], has["reserved_peak"]),
        "active_bytes": stat(has["allocated"] + has["pending"]),
        "inactive_split_bytes": stat(has["reserved"] - has["allocated"] - has["pending"]),
        "allocation": stat(has["blocks"], 0, has["allocs"], has["frees"]),
        "active": stat(has["blocks"]), "segment": stat(has["chunks"]),
        "inactive_split": stat(has["free_blocks"]), "oversize_allocations": one(),
        "oversize_segments": one(), "max_split_size": -1, "num_ooms": has["failures"],
        "num_alloc_retries": 0, "num_sync_all_streams": has["host_waits"],
        "num_device_alloc": has["driver_calls"], "num_device_free": 0}


def train(steps, is_captured):
    """Returns the weights after so many steps."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(64, 256, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        (model(batch) - batch).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # to warm up there, as PyTorch asks for
        step()
    torch.cuda.current_stream().wait_stream(side)
    if is_captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    for _ in range(steps):
        graph.replay() if is_captured else step()
        torch.full((1 << 18,), 7.0, device="cuda")  # comes and goes beside the replays
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def main():
    install()
    kept = torch.zeros(64 << 20, device="cuda")
    print(f"a tensor of 256 MiB: {torch.cuda.memory_allocated() >> 20} MiB allocated, "
          f"{torch.cuda.memory_reserved() >> 20} MiB reserved")
    torch.cuda.set_per_process_memory_fraction(0.05)
    try:
        torch.empty(torch.cuda.mem_get_info()[1] // 10, dtype=torch.uint8, device="cuda")
        sys.exit("5% of the device gave 10%")
    except torch.OutOfMemoryError as error:
        print(f"a tenth of the device, 5% being allowed:\n  {str(error).splitlines()[0]}")
    torch.cuda.set_per_process_memory_fraction(1.0)
    if kept.sum().item() != 0:
        sys.exit("a tensor changed when another could not be had")
    difference = (train(100, True) - train(100, False)).abs().max().item()
    print(f"100 steps, captured or not: the weights differ by at most {difference:.1e}")
    print(torch.cuda.memory_summary(abbreviated=True))
    if difference > 1e-5:
        sys.exit("the graph has trained something else")


if __name__ == "__main__":
    if sys.argv[1:]:
        install()
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        main()
