#!/bin/bash
# The header in C, C++ and CUDA: with the implementation, without, in two files of different
# languages, all static in one; and what it leaves behind. QUICK=1: by one compiler of each language
# alone, in the oldest versions. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CC=${CC:-gcc} CXX=${CXX:-g++} BUILD=${BUILD:-build} NVCC=${NVCC:-}
out=$BUILD/compile
rm -rf "$out"
mkdir -p "$out"
. tests/gates/checks.sh
cuda=-Itests/fakecuda/include
[[ -z ${TOOLKIT:-} ]] || cuda="-isystem $TOOLKIT/include"
strict="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror"
include=-I.
source=tests/gates/compile

# What a compiler and a language are called with.
c11="$CC -x c -std=c11 $strict"
c17="$CC -x c -std=c17 $strict"
cpp11="$CXX -x c++ -std=c++11 $strict"
cpp20="$CXX -x c++ -std=c++20 $strict"

compile() { # COMPILER OBJECT SOURCE FLAGS: must say nothing
    local said
    said=$($1 ${4:-} $include $cuda -c -o "$2" "$3" 2>&1) && [[ -z $said ]] || {
        echo "$said" | head -n 20
        return 1
    }
}

languages="c11 cpp11"
[[ ${QUICK:-} ]] || languages+=" c17 cpp20"
for name in main user; do
    for language in $languages; do
        check "$language: $name" compile "${!language}" "$out/$name-$language.o" $source/$name.c
    done
done
whole() { [[ -z ${QUICK:-} ]]; } # whether all compilers, versions and options are wanted
! whole || check "optimized" compile "$c11" "$out/main-optimized.o" $source/main.c -O2
! whole || check "without exceptions or types" compile "$cpp11" "$out/main-plain.o" $source/main.c \
    "-fno-exceptions -fno-rtti"
! whole || check "gnu11" compile "$CC -x c -std=gnu11 $strict" "$out/main-gnu.o" \
    $source/main.c
for option in GPUPOOL_CHECK=1 GPUPOOL_STREAM_CHECK=1 GPUPOOL_ENVIRONMENT=0 \
    CUDA_API_PER_THREAD_DEFAULT_STREAM=1 GPUPOOL_LIMIT=67108864 \
    GPUPOOL_SOURCE=GPUPOOL_SOURCE_PINNED GPUPOOL_CHUNK_BYTES=4194304; do
    whole || break
    check "$option" compile "$c11" "$out/main-$option.o" $source/main.c "-D$option"
    check "$option, run" link_and_run "$out/$option" "$CC" "$out/main-$option.o" "$out/user-c11.o"
done
for other in clang clang++; do
    whole || break
    if ! works $other; then left_out $other; continue; fi
    case $other in *++) flags="-x c++ -std=c++11" ;; *) flags="-x c -std=c11" ;; esac
    check "$other" compile "$other $flags $strict" "$out/main-$other.o" $source/main.c
done

# ---- two files ----
for pair in c11:cpp11 cpp11:c11 c11:c11 cpp20:cpp11; do
    whole || [[ $pair == c11:cpp11 ]] || break
    check "two files, $pair" link_and_run "$out/two-$pair" "$CXX" "$out/main-${pair%:*}.o" \
        "$out/user-${pair#*:}.o"
done
twice() { ! $CXX -o "$out/twice" "$out"/main-{c11,cpp11}.o "$out/user-c11.o" 2> "$out/twice.log"; }
check "two implementations do not link" twice

# ---- all in one file ----
cat > "$out/static.c" << 'END'
#define GPUPOOL_API static
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
int main(void) {
    return !gpupool_result_name(GPUPOOL_OK);
}
END
names_in() { # OBJECT: what other files can see; DW.ref is how g++ finds its own exceptions
    nm -C --defined-only --extern-only "$1" | awk '$3 !~ /^DW[.]ref/ { print $3 }'
}
nothing_shows() { # OBJECT
    [[ $(names_in "$1" | xargs) == main ]]
}
for language in c11 cpp11; do
    check "static, $language" compile "${!language} -Wno-unused-function" \
        "$out/static-$language.o" "$out/static.c"
    check "static, $language: nothing shows" nothing_shows "$out/static-$language.o"
done

# ---- the programs in the comment at the top of the header ----
program() { # HEADING: the indented lines after it, up to the next heading
    awk -v heading="$1" 'index($0, heading) == 1 { on = 1; next }
        on && /^[^ ]/ { exit }
        on { sub("^    ", ""); print }' gpupool.h
}
program_runs() { # FILE COMPILER
    [[ $(grep -c main "$1") == 1 ]] && compile "$2" "$1.o" "$1" &&
        link_and_run "${1%.*}" "$CXX" "$1.o"
}
program "A complete program:" > "$out/program.c"
program "The same in C++" > "$out/program_cpp.cpp"
for language in $languages; do
    check "the top's program, $language" program_runs "$out/program.c" "${!language}"
done
for language in cpp11 cpp20; do
    [[ " $languages " == *" $language "* ]] || continue
    check "the top's program in C++, $language" program_runs "$out/program_cpp.cpp" "${!language}"
done
existing() { # a program that knows nothing of gpupool, with the flags that the top names
    local flags="-DGPUPOOL_REPLACE_CUDA_MALLOC=1 -include gpupool.h"
    printf '%s\n' '#include <cuda_runtime_api.h>' '#include <stdio.h>' \
        'int main(void) { void *p; return cudaMalloc(&p, 100) || cudaFree(p); }' \
        > "$out/existing.c"
    compile "$1" "$out/existing.o" "$out/existing.c" "$flags -DGPUPOOL_IMPLEMENTATION" &&
        nm -C "$out/existing.o" | grep gpupool_cudaMalloc &&
        link_and_run "$out/existing" "$CXX" "$out/existing.o"
}
for language in ${languages#* }; do
    check "an existing program, $language" existing "${!language}"
done

# ---- what is left behind ----
only_ours() { # OBJECT: every name that others can see begins with gpupool_
    local names
    names=$(names_in "$1")
    grep -qx 'gpupool_alloc' <<< "$names" && ! grep -Ev '^(gpupool_[A-Za-z_]*|main)$' <<< "$names"
}
check "symbols, C" only_ours "$out/main-c11.o"
check "symbols, C++" only_ours "$out/main-cpp11.o"
macros() { # FLAGS: of gpupool.h, without those of what it includes
    echo '#include "gpupool.h"' > "$out/header.c"
    printf '#include <%s>\n' cuda.h cuda_runtime_api.h stddef.h stdint.h stdio.h stdlib.h \
        > "$out/others.c"
    for file in header others; do
        $CC -x c -std=c11 $1 $include $cuda -dM -E "$out/$file.c" | awk '{ print $2 }' |
            sed 's/(.*//' | sort -u > "$out/$file.txt"
    done
    comm -23 "$out/header.txt" "$out/others.txt"
}
only_our_macros() { macros "" | grep -qx GPUPOOL_NO_STREAM && ! macros "" | grep -v '^GPUPOOL_'; }
check "macros of a file without the implementation" only_our_macros

replaced="cudaDeviceReset cudaFree cudaFreeAsync cudaMalloc cudaMallocAsync"
macros_with_names() { # where they are to be replaced
    local others
    others=$(macros -DGPUPOOL_REPLACE_CUDA_MALLOC=1 | grep -v '^GPUPOOL_' | xargs)
    [[ $others == "$replaced cudaStreamDestroy" ]] || { echo "$others"; return 1; }
}
check "macros with CUDA's names" macros_with_names

# ---- CUDA's names over gpupool's functions ----
names=tests/gates/compile
per_thread=-DCUDA_API_PER_THREAD_DEFAULT_STREAM
replaced() { # LANGUAGE FLAGS: calls, pointers, deleters, templates; in one file
    compile "$1 $2" "$out/replaced.o" $names/replace.c &&
        link_and_run "$out/replaced" "$CXX" "$out/replaced.o"
}
later() { # LANGUAGE FLAGS: an include that replaces, then the implementation
    compile "$1 $2" "$out/later.o" $source/later.c &&
        link_and_run "$out/later" "$CXX" "$out/later.o"
}
for language in $languages; do
    check "replaced, and implemented later, $language" later "${!language}" ""
    check "replaced, $language, streams per thread" replaced "${!language}" $per_thread
    whole || continue
    check "replaced, and implemented later, $language, streams per thread" later "${!language}" \
        $per_thread
    check "replaced, $language" replaced "${!language}" ""
done
two_files() { # COMPILER FLAGS COMPILER FLAGS: of the first file, of the second
    local here="-Werror $include -isystem tests/fakecuda/include"
    $1 $2 $here -c -o "$out/names_main.o" $names/names_main.cpp &&
        $3 $4 $here -c -o "$out/names_other.o" $names/names_other.cpp &&
        link_and_run "$out/names" "$1" "$out/names_main.o" "$out/names_other.o"
}
compilers=()
for compiler in "$CXX" clang++; do
    whole || break
    if works "$compiler"; then compilers+=("$compiler"); else left_out "$compiler"; fi
done
for compiler in "${compilers[@]}"; do
    check "$compiler: names in two files" \
        two_files "$compiler" "-std=c++14 $per_thread" "$compiler" "-std=c++17 $per_thread"
    mixed="-std=c++17 -DNAMES_MIXED"
    check "$compiler: names, one of two files with streams per thread" \
        two_files "$compiler" "$mixed" "$compiler" "$mixed $per_thread"
done
[[ ${#compilers[@]} != 2 ]] || check "names in a file of each compiler" \
    two_files "$CXX" -std=c++11 clang++ "-std=c++20 -O2"

# ---- CUDA ----
in_cuda() { # SOURCE
    cp $source/$1.c "$out/$1.cu"
    $NVCC -std=c++14 -Werror all-warnings -Xcompiler -Wall,-Wextra $include -I$source -c \
        -o "$out/$1-cu.o" "$out/$1.cu" > "$out/nvcc.log" 2>&1 && [[ ! -s $out/nvcc.log ]] ||
        { cat "$out/nvcc.log"; return 1; }
}
cu_files() { # FLAGS
    local name
    for name in main other; do
        $NVCC $1 $include -x cu -c -o "$out/names_$name-cu.o" $names/names_$name.cpp || return 1
    done
    $NVCC -o "$out/names-cu" "$out"/names_{main,other}-cu.o
}
if ! whole; then :
elif [[ -n $NVCC ]]; then
    check "nvcc, with the implementation" in_cuda main
    check "nvcc, without" in_cuda user
    check "nvcc, names in two files" cu_files -std=c++17
    flags="-std=c++20 --default-stream per-thread"
    check "nvcc, names, streams per thread" "$NVCC" $flags -Werror all-warnings $include -x cu -c \
        -o "$out/replaced-cu.o" $names/replace.c
    check "nvcc, the same kernels in both passes" \
        same_kernels "$flags" 6 $names/names_kernels.cu
    check "nvcc, kernels that call CUDA's names" "$NVCC" -rdc=true $include -o "$out/device-cu" \
        -Werror all-warnings $names/device_side.cu
    # CUDA's part of such an object is for a real runtime: only the host's part is linked.
    cudart="-Wl,--unresolved-symbols=ignore-in-object-files"
    check "two files, nvcc and C" $CXX $cudart -o "$out/two-cu" "$out/main-cu.o" "$out/user-c11.o" \
        "$BUILD/fakecuda/none.a" -pthread
else
    left_out nvcc
fi

echo "$passed passed, $failed failed"
((failed == 0))
