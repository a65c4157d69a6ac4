#!/bin/bash
# The header in C, C++ and CUDA: with the implementation, without, in two files of different
# languages, all static in one; and what it leaves behind. QUICK=1: by one compiler of each language
# alone, in the oldest versions. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CC=${CC:-gcc} CXX=${CXX:-g++} BUILD=${BUILD:-build} NVCC=${NVCC:-} QUICK=${QUICK:-}
out=$BUILD/compile source=tests/gates/compile include=-I.
rm -rf "$out"
mkdir -p "$out"
. tests/gates/checks.sh
cuda=-Itests/fakecuda/include
[[ -z ${TOOLKIT:-} ]] || cuda="-isystem $TOOLKIT/include"
strict="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror"
per_thread=-DCUDA_API_PER_THREAD_DEFAULT_STREAM

# What a compiler and a language are called with.
c11="$CC -x c -std=c11 $strict"
c17="$CC -x c -std=c17 $strict"
cpp11="$CXX -x c++ -std=c++11 $strict"
cpp20="$CXX -x c++ -std=c++20 $strict"
languages="c11 cpp11"
[[ $QUICK ]] || languages+=" c17 cpp20"

compile() { # COMPILER OBJECT SOURCE FLAGS: must say nothing
    local said
    said=$($1 ${4:-} $include $cuda -c -o "$2" "$3" 2>&1) && [[ -z $said ]] || {
        echo "$said" | head -n 20
        return 1
    }
}
runs() { # COMPILER SOURCE FLAGS: a program of one file
    compile "$1" "$out/runs.o" "$2" "${3:-}" && link_and_run "$out/runs" "$CXX" "$out/runs.o"
}

# ---- two files ----
for name in main user; do
    for language in $languages; do
        check "$language: $name" compile "${!language}" "$out/$name-$language.o" $source/$name.c
    done
done
for pair in c11:cpp11 $([[ $QUICK ]] || echo cpp11:c11 c11:c11 cpp20:cpp11); do
    check "two files, $pair" link_and_run "$out/two-$pair" "$CXX" "$out/main-${pair%:*}.o" \
        "$out/user-${pair#*:}.o"
done
twice() { ! $CXX -o "$out/twice" "$out"/main-{c11,cpp11}.o "$out/user-c11.o" 2> "$out/twice.log"; }
check "two implementations do not link" twice

# ---- all in one file ----
names_in() { # OBJECT: what other files can see; DW.ref is how g++ finds its own exceptions
    nm -C --defined-only --extern-only "$1" | awk '$3 !~ /^DW[.]ref/ { print $3 }'
}
nothing_shows() { # LANGUAGE
    compile "${!1} -Wno-unused-function" "$out/static.o" $source/static.c &&
        [[ $(names_in "$out/static.o" | xargs) == main ]]
}
check "static, c11" nothing_shows c11
check "static, cpp11" nothing_shows cpp11

# ---- the programs in the comment at the top of the header ----
program() { # HEADING: the indented lines after it, up to the next heading
    awk -v heading="$1" 'index($0, heading) == 1 { on = 1; next }
        on && /^[^ ]/ { exit }
        on { sub("^    ", ""); print }' gpupool.h
}
program "A complete program:" > "$out/program.c"
program "The same in C++" > "$out/program_cpp.cpp"
cat > "$out/existing.c" << 'END_OF_C'
#include <cuda_runtime_api.h>
#include <stdio.h>
int main(void) { void *p; return cudaMalloc(&p, 100) || cudaFree(p); }
END_OF_C
existing="-DGPUPOOL_REPLACE_CUDA_MALLOC=1 -include gpupool.h -DGPUPOOL_IMPLEMENTATION"
for language in $languages; do
    check "the top's program, $language" runs "${!language}" "$out/program.c"
    check "an existing program, $language" runs "${!language}" "$out/existing.c" "$existing"
    [[ $language != cpp* ]] ||
        check "the top's program in C++, $language" runs "${!language}" "$out/program_cpp.cpp"
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
# ---- CUDA's names over gpupool's functions: calls, pointers, deleters, templates, in one file ----
for language in $languages; do
    check "replaced, $language" runs "${!language}" $source/replace.c
    [[ $QUICK ]] || check "replaced, $language, streams per thread" runs "${!language}" \
        $source/replace.c $per_thread
done

if [[ $QUICK ]]; then
    echo "$passed passed, $failed failed"
    exit $((failed != 0))
fi

# ---- options ----
check "optimized" compile "$c11" "$out/optimized.o" $source/main.c -O2
check "without exceptions or types" compile "$cpp11" "$out/plain.o" $source/main.c \
    "-fno-exceptions -fno-rtti"
check "gnu11" compile "$CC -x c -std=gnu11 $strict" "$out/gnu.o" $source/main.c
for option in GPUPOOL_CHECK=1 GPUPOOL_STREAM_CHECK=1 GPUPOOL_ENVIRONMENT=0 \
    CUDA_API_PER_THREAD_DEFAULT_STREAM=1 GPUPOOL_LIMIT=67108864 \
    GPUPOOL_SOURCE=GPUPOOL_SOURCE_PINNED GPUPOOL_CHUNK_BYTES=4194304; do
    check "$option" compile "$c11" "$out/$option.o" $source/main.c "-D$option"
    check "$option, run" link_and_run "$out/$option" "$CC" "$out/$option.o" "$out/user-c11.o"
done
for other in clang clang++; do
    if ! works $other; then left_out $other; continue; fi
    case $other in *++) flags="-x c++ -std=c++11" ;; *) flags="-x c -std=c11" ;; esac
    check "$other" compile "$other $flags $strict" "$out/$other.o" $source/main.c
done

# ---- types over CUDA's names that two files share ----
two_files() { # COMPILER: of the second file
    compile "$CXX -std=c++11" "$out/names-main.o" $source/names.cpp &&
        compile "$1" "$out/names-other.o" $source/names.cpp -DOTHER &&
        link_and_run "$out/names" "$CXX" "$out"/names-{main,other}.o
}
check "names in two files" two_files "$CXX -std=c++20 -O2"
! works clang++ || check "names in a file of each compiler" two_files "clang++ -std=c++17"

# ---- nvcc ----
nvcc() { # OBJECT SOURCE FLAGS
    $NVCC -x cu -Werror all-warnings $include -I$source ${3:-} -c -o "$out/$1" "$2" \
        > "$out/nvcc.log" 2>&1 && [[ ! -s $out/nvcc.log ]] || { cat "$out/nvcc.log"; return 1; }
}
# A kernel that only the pass for the host has made is registered nowhere: no launch finds it.
same_kernels() { # FLAGS: each kernel of names.cpp is there under the name by which it is launched
    mkdir -p "$out/kept" && $NVCC $1 -x cu -I. -keep -keep-dir "$out/kept" -c \
        -o "$out/kernels.o" $source/names.cpp || return 1
    sed -n 's/.*\.entry \([A-Za-z0-9_]*\).*/\1/p' "$out"/kept/*.ptx | sort -u > "$out/there"
    nm --defined-only "$out/kernels.o" | sed -nE 's/.* (_Z[0-9]+(made_for|freed_by).*)/\1/p' |
        sort -u > "$out/asked"
    [[ $(wc -l < "$out/asked") == 3 && -z $(comm -13 "$out/there" "$out/asked" | tee /dev/stderr) ]]
}
if [[ $NVCC ]]; then
    check "nvcc, with the implementation" nvcc main-cu.o $source/main.c \
        "-std=c++14 -Xcompiler -Wall,-Wextra"
    check "nvcc, without" nvcc user-cu.o $source/user.c "-std=c++14 -Xcompiler -Wall,-Wextra"
    flags="-std=c++20 --default-stream per-thread"
    check "nvcc, names, streams per thread" nvcc replaced-cu.o $source/replace.c "$flags"
    check "nvcc, the same kernels in both passes" same_kernels "$flags"
    # CUDA's part of such an object is for a real runtime: only the host's part is linked.
    cudart="-Wl,--unresolved-symbols=ignore-in-object-files"
    check "two files, nvcc and C" $CXX $cudart -o "$out/two-cu" "$out/main-cu.o" "$out/user-c11.o" \
        "$BUILD/fakecuda/none.a" -pthread
else
    left_out nvcc
fi

echo "$passed passed, $failed failed"
((failed == 0))
