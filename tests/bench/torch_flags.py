#!/usr/bin/env python3
"""Prints what a C++ compiler must be told to build against PyTorch, one word a line; or, with
status 1, why there is nothing to build against."""

import os
import sys

from torch_replay import LeftOut, cuda_include, find_torch


def main():
    try:
        torch = find_torch()
        root = os.path.dirname(torch.__file__)
        include = cuda_include(torch)
    except LeftOut as why:
        print(why)
        return 1
    print(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
    for place in (root + "/include", include):
        print("-isystem", place, sep="\n")
    print(f"-L{root}/lib", "-lc10_cuda", "-lc10", f"-Wl,-rpath,{root}/lib", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
