#!/bin/bash
# Namespace gpupool in C++: its programs run on the simulated GPU, with files built in one way or in
# two; no warning; nothing included; cuda::mr's concepts; Thrust and nvcc. Closes with `N passed, N
# failed`.
set -u
. "$(dirname "$0")/cxx.sh" cpp
static="-DGPUPOOL_STATIC=1 -DCPP_OTHER_IMPLEMENTS"

# ---- two files, one program; unoptimised, functions that both files have are one: any of them ----
two_files() { # COMPILER FLAGS, FLAGS: of the first file, of the second
    $1 $2 $fake -Werror -pthread -c -o "$out/main.o" $main &&
        $1 $3 $fake -Werror -pthread -c -o "$out/other.o" $other &&
        link_and_run "$out/two_files" "$1" "$out/main.o" "$out/other.o" &&
        link_and_run "$out/two_files" "$1" "$out/other.o" "$out/main.o"
}
for compiler in "${compilers[@]}"; do
    for flags in "-std=c++11 -O1" "-std=c++20 -fno-exceptions" "-std=c++17 $per_thread" \
        "-std=c++14 -DGPUPOOL_SITES=1" "-std=c++11 $static"; do
        check "$compiler $flags: two files" two_files "$compiler" "$flags" "$flags"
    done
    check "$compiler: a file without exceptions" \
        two_files "$compiler" -std=c++11 "-std=c++11 -fno-exceptions"
    check "$compiler: a file with streams per thread" \
        two_files "$compiler" "-std=c++17 $per_thread -fno-exceptions" -std=c++17
done
[[ ${#compilers[@]} == 0 ]] || check "eight threads, every invariant around every call" two_files \
    "${compilers[0]}" "-std=c++11 -O1 -DGPUPOOL_CHECK=2" -std=c++11

# ---- no warning, the header being no system header ----
quietly() { # COMPILER FLAGS
    $1 $2 $fake -Wall -Wextra -pedantic -Wshadow -Wold-style-cast -Wuseless-cast -Wconversion \
        -Wsign-conversion -Wcast-qual -Wundef -Wno-unknown-warning-option -Werror \
        -fsyntax-only $other
}
for compiler in "${compilers[@]}"; do
    for flags in -std=c++11 "-std=c++20 $per_thread" "-std=c++17 -fno-exceptions" \
        "-std=c++14 -DGPUPOOL_SITES=1"; do
        check "$compiler $flags: no warning" quietly "$compiler" "$flags"
    done
done

# ---- nothing included but <new> ----
includes() { # what the header itself includes
    echo '#include "gpupool.h"' | $CXX $fake -x c++ -H -fsyntax-only - 2>&1 |
        sed -n 's,^\.\. .*/,,p' | sort
}
only_new() {
    [[ $(includes) == $'cuda_runtime_api.h\nnew\nstddef.h\nstdint.h\nstdio.h' ]] ||
        { includes; return 1; }
}
! works "$CXX" || check "what it includes" only_new
refuses() { # WORDS CODE: the compiler's words about the code
    printf '#include "gpupool.h"\nvoid f(gpupool::resource r) { %s; }\n' "$2" |
        $CXX $fake -x c++ -fsyntax-only - 2>&1 | grep "$1"
}
if works "$CXX"; then
    check "allocate(0, bytes) is a stream or a size" refuses ambiguous "r.allocate(0, 100)"
    check "arenas are not copied" refuses deleted "gpupool::arena a, b(a)"
    check "blocks are not copied" refuses deleted "gpupool::block a, b(a)"
    check "memory of the device is not the host's" refuses conversion \
        "gpupool::host_resource h = r"
fi

# ---- cuda::mr, of the toolkit ----
resource() { # COMPILER FLAGS
    $1 $2 -isystem "$TOOLKIT/include/cccl" -isystem "$TOOLKIT/include" -I. -Wall -Wextra -Werror \
        -c -o "$out/resource.o" tests/gates/compile/cpp_resource.cpp &&
        link_and_run "$out/resource" "$1" "$out/resource.o"
}
if [[ $TOOLKIT && -e $TOOLKIT/include/cccl/cuda/memory_resource ]]; then
    for compiler in "${compilers[@]}"; do
        for flags in -std=c++17 -std=c++20; do
            check "$compiler $flags: cuda::mr's concepts" resource "$compiler" "$flags"
        done
    done
else
    left_out "cuda::mr"
fi

# ---- nvcc ----
if [[ $NVCC ]]; then
    cu="-I. -c -o $out/cu.o -Werror all-warnings -Xcompiler -Wall,-Wextra"
    check "nvcc: cuda::mr's concepts" "$NVCC" -std=c++17 -x cu $cu \
        tests/gates/compile/cpp_resource.cpp
    check "nvcc: a file" "$NVCC" -std=c++17 --default-stream per-thread -x cu $cu $other
    check "nvcc: Thrust" "$NVCC" -std=c++17 $cu tests/gpu/cpp_thrust.cu
else
    left_out nvcc
fi

echo "$passed passed, $failed failed"
((failed == 0))
