#!/bin/bash
# The header under every compiler and language version, alone and in small programs. Closes with
# `N passed, N failed`.
set -u
cd "$(dirname "$0")/../../.."
CC=${CC:-gcc} CXX=${CXX:-g++} BUILD=${BUILD:-build} TOOLKIT=${TOOLKIT:-} NVCC=${NVCC:-}
out=$BUILD/compile here=tests/gates/compile
rm -rf "$out"
mkdir -p "$out"
strict="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef -Wcast-qual
        -Wswitch-enum -Werror"
fake="-I. -Itests/fakecuda/include"
implementation=tests/support/library.c
units="$implementation $here/main.c $here/user.c"
header_only="$here/main.c $here/user.c" # with the implementation in each
c_versions="c99 c11 c17"
cxx_versions="c++11 c++17 c++20"
. $here/checks.sh

flags_for() { # STANDARD: how to compile a .c file as that language
    case $1 in
    c++*) echo "-x c++ -std=$1 $strict" ;;
    *) echo "-x c -std=$1 $strict -Wstrict-prototypes" ;;
    esac
}

# ---- every language version; gcc's flow warnings need an optimiser, which the oldest gets ----
versions() { # COMPILER STANDARD...
    local compiler=$1 depth=-fsyntax-only
    [[ $compiler == clang* ]] || depth="-O1 -c -o $out/x.o"
    shift
    for standard in "$@"; do
        for source in $implementation $here/user.c $here/later.c; do
            check "$compiler $standard $source" \
                $compiler $(flags_for "$standard") $fake $depth $source
        done
        depth=-fsyntax-only
    done
}
for pair in "$CC:$c_versions" "$CXX:$cxx_versions" "clang:$c_versions" "clang++:$cxx_versions"; do
    compiler=${pair%%:*}
    if works "$compiler"; then versions "$compiler" ${pair#*:}; else left_out "$compiler"; fi
done

# ---- other headers than fakecuda's of today ----
check "checks without asserts" $CC $(flags_for c99) $fake -DGPUPOOL_CHECK=2 -DNDEBUG -fsyntax-only \
    $implementation
for unit in 128 768 4194304 "1<<12" "2*256"; do
    check "no unit of $unit bytes" refuses_unit $unit
done
check "CUDA 12 shapes" $CC $(flags_for c11) $fake -DFAKECUDA_CUDART_VERSION=12080 -fsyntax-only \
    $implementation
check "a unit that is an unsigned long" $CC $(flags_for c11) $fake -DGPUPOOL_UNIT_BYTES=1024ul \
    -fsyntax-only $implementation
check "no ids of streams before CUDA 12" refuses_stream_check
if [[ $TOOLKIT ]]; then
    for pair in "$CC:c99" "$CXX:c++20" "clang:c11" "clang++:c++17"; do
        compiler=${pair%%:*}
        works "$compiler" && check "$pair with the toolkit's headers" \
            $compiler $(flags_for "${pair#*:}") -I. -isystem "$TOOLKIT/include" -fsyntax-only \
            $implementation $here/replace.c $here/per_thread.c
    done
else
    left_out "the toolkit's headers"
fi
if [[ $NVCC ]]; then
    check "nvcc, as .cu" "$NVCC" -x cu -c -o "$out/cu.o" -Werror all-warnings \
        -Xcompiler -Wall,-Wextra,-Werror $implementation
    check "nvcc, cudaMalloc replaced, streams per thread" "$NVCC" -x cu -c -o "$out/cu.o" \
        -Werror all-warnings -I. --default-stream per-thread $here/replace.c
else
    left_out nvcc
fi

# ---- programs of two translation units, built and run ----
program() { # NAME COMPILER STANDARD FLAGS...
    check "$1" two_units "$out/$1" "$2" "$(flags_for "$3") ${*:4} $fake"
}
static="-DGPUPOOL_STATIC=1 -DGPUPOOL_IMPLEMENTATION"
program plain "$CC" c99
units=$header_only program static "$CC" c99 $static
program single_thread "$CC" c11 -O1 -DGPUPOOL_SINGLE_THREAD=1
program unmapped "$CC" c11 -O1 -DGPUPOOL_MAPPED=0
for level in 0 2; do program "check_$level" "$CC" c11 -O1 -DGPUPOOL_CHECK=$level; done
units=$here/replace.c program replace "$CC" c99
units=$here/per_thread.c program per_thread "$CC" c99 -DCUDA_API_PER_THREAD_DEFAULT_STREAM
units=$here/replace.c program replace_per_thread "$CC" c11 \
    -DCUDA_API_PER_THREAD_DEFAULT_STREAM
if works "$CXX"; then
    units=$here/replace.c program replace_cxx "$CXX" c++11
    units=$here/replace.c program replace_per_thread_cxx "$CXX" c++20 \
        -DCUDA_API_PER_THREAD_DEFAULT_STREAM
    units=$here/per_thread.c program per_thread_cxx "$CXX" c++17 \
        -DCUDA_API_PER_THREAD_DEFAULT_STREAM
    program plain_cxx "$CXX" c++11
    units=$header_only program static_cxx "$CXX" c++17 $static
    check "C calls C++" mixed "$CXX" c++17 "$CC" c11
    check "C++ calls C" mixed "$CC" c11 "$CXX" c++17
    fake="$fake -fvisibility=hidden -DGPUPOOL_API=__attribute__((visibility(\"default\")))" \
        check "C++ calls C, with a GPUPOOL_API" mixed "$CC" c11 "$CXX" c++11
fi

echo "$passed passed, $failed failed"
((failed == 0))
