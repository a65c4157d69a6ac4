#!/bin/bash
# Namespace gpupool in C++: its programs run on the simulated GPU, with files built in one way or in
# two; no warning; what does not compile; cuda::mr, CUDA's buffers, RMM and Thrust. CCCL: a folder
# with a newer CCCL than the toolkit's; RMM: one with RMM's headers, as `pip install librmm-cu13`
# brings them; PyTorch's allocator. QUICK=1: one compiler, and what it runs. Closes with
# `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CXX=${CXX:-g++} BUILD=${BUILD:-build} TOOLKIT=${TOOLKIT:-} NVCC=${NVCC:-} QUICK=${QUICK:-}
out=$BUILD/cpp source=tests/gates/cpp include=-I.
fake="$include -isystem tests/fakecuda/include"
per_thread=-DCUDA_API_PER_THREAD_DEFAULT_STREAM
rm -rf "$out"
mkdir -p "$out"
. tests/gates/checks.sh
compilers=()
for compiler in "$CXX" $([[ $QUICK ]] || echo clang++); do
    if works "$compiler"; then compilers+=("$compiler"); else left_out "$compiler"; fi
done

# ---- two files, one program; unoptimized, functions that both files have are one: any of them ----
two_files() { # COMPILER FLAGS, FLAGS: of the first file, of the second
    $1 $2 $fake -Wall -Wextra -Werror -pthread -c -o "$out/main.o" $source/main.cpp &&
        $1 $3 $fake -Wall -Wextra -Werror -c -o "$out/other.o" $source/other.cpp &&
        link_and_run "$out/two_files" "$1" "$out/main.o" "$out/other.o" &&
        link_and_run "$out/two_files" "$1" "$out/other.o" "$out/main.o"
}
throws() { # COMPILER
    $1 -std=c++11 $fake -pthread -o "$out/throws" $source/throws.cpp "$BUILD/fakecuda/none.a" &&
        timeout 60 "$out/throws"
}
for compiler in "${compilers[@]}"; do
    check "$compiler: two files" two_files "$compiler" "-std=c++11 -O1" "-std=c++11 -O1"
    [[ -z $QUICK ]] || break
    check "$compiler: C++20 without exceptions" two_files "$compiler" \
        "-std=c++20 -fno-exceptions" "-std=c++20 -fno-exceptions"
    check "$compiler: a file without exceptions" two_files "$compiler" -std=c++11 \
        "-std=c++11 -fno-exceptions"
    check "$compiler: a file with streams per thread" two_files "$compiler" -std=c++11 \
        "-std=c++17 $per_thread"
    check "$compiler: callbacks that throw" throws "$compiler"
done

pytorch() { # PyTorch's allocator of examples/, without PyTorch
    $1 -std=c++17 $fake -pthread -Wall -Wextra -Werror -Iexamples -Itests -Itests/gates/pytorch \
        -o "$out/pytorch" tests/gates/pytorch/allocator_test.cpp "$BUILD/fakecuda/none.a" &&
        "$out/pytorch"
}
! works "$CXX" || check "PyTorch's allocator" pytorch "$CXX"

# ---- no warning, the header being no system header; inside extern "C" too ----
quietly() { # COMPILER FLAGS SOURCE
    $1 $2 $fake -Wall -Wextra -pedantic -Wshadow -Wold-style-cast -Wuseless-cast -Wconversion \
        -Wsign-conversion -Wcast-qual -Wundef -Wno-unknown-warning-option -Werror -fsyntax-only "$3"
}
printf 'extern "C" {\n#include "gpupool.h"\n}\ngpupool::arena a;\n' > "$out/c_linkage.cpp"
for compiler in "${compilers[@]}"; do
    for flags in -std=c++11 "-std=c++20 $per_thread" "-std=c++17 -fno-exceptions"; do
        check "$compiler $flags: no warning" quietly "$compiler" "$flags" $source/other.cpp
    done
    check "$compiler: inside extern \"C\"" quietly "$compiler" -std=c++17 "$out/c_linkage.cpp"
done

# ---- what does not compile ----
says() { # CODE: what the compiler says about it
    printf '#include "gpupool.h"\n#include <list>\n#include <vector>\n%s\n' \
        "void f(gpupool::resource r) { $1; (void)r; }" > "$out/said.cpp"
    $CXX $fake -std=c++17 -fsyntax-only "$out/said.cpp" 2>&1
}
compiles() { [[ -z $(says "$1") ]] || { says "$1"; return 1; }; }
refuses() { says "$2" | grep -E "error.*$1"; } # WORDS CODE
vector="std::vector<int, gpupool::allocator<int"
if works "$CXX"; then
    check "a vector of the host's memory" compiles "$vector, gpupool::host_resource>> \
        v(10, 1, gpupool::host_resource(r))"
    check "no vector of the device's" refuses host_resource "$vector>> v(10, 1, r)"
    check "no list" refuses host_resource \
        "std::list<int, gpupool::allocator<int>> l(r); l.emplace_back(1)"
    check "allocate(0, bytes) is a stream or a size" refuses ambiguous "r.allocate(0, 100)"
    check "arenas are not copied" refuses deleted "gpupool::arena a, b(a)"
    check "memory of the device is not the host's" refuses conversion "gpupool::host_resource h = r"
fi

if [[ $QUICK ]]; then
    echo "$passed passed, $failed failed"
    exit $((failed != 0))
fi

# ---- cuda::mr and CUDA's buffers: the toolkit's, and newer ones; RMM; nvcc ----
mr() { # COMPILER FLAGS CCCL
    $1 $2 -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE -isystem "$3" -isystem \
        "$TOOLKIT/include" $include -Wall -Wextra -Werror -c -o "$out/mr.o" $source/mr.cpp &&
        link_and_run "$out/mr" "$1" "$out/mr.o"
}
in_cuda() { # SOURCE FLAGS
    $NVCC -std=c++17 ${2:-} $include -c -o "$out/cu.o" -Werror all-warnings -Xcompiler \
        -Wall,-Wextra -x cu "$1"
}
rmm=${RMM:-$(python3 -c 'import librmm; print(*librmm.__path__)' 2> /dev/null)/include}
rmm_example() { # in C++20, by g++: clang does not compile RMM's headers
    $CXX -std=c++20 -isystem $rmm -isystem $rmm/rapids -isystem "$TOOLKIT/include" $include -Wall \
        -Wextra -Wno-deprecated-declarations -Werror -c -o "$out/rmm.o" examples/rmm_resource.cpp
}
[[ $NVCC ]] || left_out nvcc
for cccl in "$TOOLKIT/include/cccl" "${CCCL:-}" "$rmm/rapids"; do
    if [[ ! $TOOLKIT || ! -e $cccl/cuda/memory_resource ]]; then
        left_out "cuda::mr in $cccl"
        continue
    fi
    for compiler in "${compilers[@]}"; do
        standard=$([[ $compiler == clang* ]] && echo 20 || echo 17)
        check "$compiler, C++$standard: cuda::mr of $cccl" mr "$compiler" -std=c++$standard "$cccl"
    done
    [[ $NVCC ]] || continue
    check "nvcc: cuda::mr of $cccl" in_cuda $source/mr.cpp \
        "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE -I$cccl"
done
if [[ $NVCC ]]; then
    check "nvcc: a file" in_cuda $source/other.cpp "--default-stream per-thread"
    check "nvcc: Thrust, by the example" in_cuda examples/thrust_vector.cu
fi
if [[ $TOOLKIT && -e $rmm/rmm/device_buffer.hpp ]]; then check "RMM: the example" rmm_example
else left_out "RMM: see above"; fi

echo "$passed passed, $failed failed"
((failed == 0))
