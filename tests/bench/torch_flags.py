#!/usr/bin/env python3
"""Prints what a C++ compiler must be told to build against PyTorch, one word a line; or, with
status 1, why there is nothing to build against."""

import glob
import importlib.util
import os
import shutil
import sys


def find_include(root):
    """The folder of cuda_runtime_api.h: of a toolkit, or of the wheels that PyTorch brought."""
    nvcc = shutil.which("nvcc")
    site = os.path.dirname(root)
    places = [os.environ.get("CUDA_HOME", "") + "/include"]
    if nvcc:
        places += [os.path.dirname(os.path.dirname(os.path.realpath(nvcc))) + "/include"]
    places += ["/usr/local/cuda/include"]
    places += glob.glob(site + "/nvidia/cu[0-9]*/include") + [site + "/nvidia/cuda_runtime/include"]
    found = [place for place in places if os.path.exists(place + "/cuda_runtime_api.h")]
    return found[0] if found else None


def main():
    if not importlib.util.find_spec("torch"):
        return "no PyTorch in " + sys.executable
    import torch

    if not torch.cuda.is_available():
        return "PyTorch sees no GPU"
    root = os.path.dirname(torch.__file__)
    include = find_include(root)
    if not include:
        return "no cuda_runtime_api.h"
    print(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
    for place in (root + "/include", include):
        print("-isystem", place, sep="\n")
    print(f"-L{root}/lib", "-lc10_cuda", "-lc10", f"-Wl,-rpath,{root}/lib", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
