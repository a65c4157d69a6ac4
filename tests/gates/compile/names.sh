#!/bin/bash
# CUDA's names over gpupool's functions in C++: one function each in every file, in both passes of
# nvcc, in modules; no warning; and gpupool beneath a program that does not know of it. Closes with
# `N passed, N failed`.
set -u
. "$(dirname "$0")/cxx.sh" names

# ---- two files, one program ----
two_files() { # COMPILER FLAGS COMPILER FLAGS: of the first file, of the second
    $1 $2 $fake -Werror -c -o "$out/main.o" $main &&
        $3 $4 $fake -Werror -c -o "$out/other.o" $other &&
        link_and_run "$out/two_files" "$1" "$out/main.o" "$out/other.o"
}
for compiler in "${compilers[@]}"; do
    for flags in -std=c++11 -std=c++17 "-std=c++20 -O2" "-std=c++17 $per_thread"; do
        check "$compiler $flags: two files" two_files "$compiler" "$flags" "$compiler" "$flags"
    done
    mixed="-std=c++17 -DNAMES_MIXED"
    check "$compiler: one of two files with streams per thread" \
        two_files "$compiler" "$mixed" "$compiler" "$mixed $per_thread"
done
[[ ${#compilers[@]} != 2 ]] || check "a file of each compiler" \
    two_files "$CXX" -std=c++11 clang++ "-std=c++20 -O2"

# ---- no warning, the header being no system header ----
quietly() { # COMPILER FLAGS
    $1 $2 $fake -Wall -Wextra -Wold-style-cast -Wuseless-cast -Wno-unknown-warning-option -Werror \
        -fsyntax-only $other
}
for compiler in "${compilers[@]}"; do
    for flags in -std=c++11 "-std=c++20 $per_thread"; do
        check "$compiler $flags: no warning" quietly "$compiler" "$flags"
    done
done

# ---- an explicit 0 ----
runtime_read() { # FLAGS: whether the header reads cuda_runtime.h, too
    echo '#include "gpupool.h"' | $CXX $1 $fake -x c++ -M - | grep -q '/cuda_runtime\.h'
}
leaves_runtime_out() { runtime_read -DGPUPOOL_REPLACE_CUDA_MALLOC=1 && ! runtime_read "$1"; }
if works "$CXX"; then
    for flags in "" -DGPUPOOL_REPLACE_CUDA_MALLOC=0; do
        check "cudaMalloc not replaced: no cuda_runtime.h ($flags)" leaves_runtime_out "$flags"
    done
fi

# ---- modules ----
module_of() { # COMPILER FLAGS: into $out/module.o, and importer.o of who imports it
    local source=$here/tests/gates/compile/names_module.cpp
    local user=$here/tests/gates/compile/names_import.cpp
    local flags="$2 -std=c++20 -isystem $here/tests/fakecuda/include -I$here -Werror"
    cd "$out" || return 1
    case $1 in
    *clang*)
        $1 $flags -x c++-module --precompile -o names.pcm "$source" &&
            $1 -std=c++20 -c -o module.o names.pcm &&
            $1 $flags -fprebuilt-module-path=. -c -o importer.o "$user" ;;
    *)
        $1 $flags -fmodules-ts -c -o module.o "$source" &&
            $1 $flags -fmodules-ts -c -o importer.o "$user" ;;
    esac
}
module() { # COMPILER FLAGS
    (module_of "$1" "$2") && $1 $fake -x c++ -c -o "$out/library.o" tests/support/library.c &&
        link_and_run "$out/module" "$1" "$out"/{module,importer,library}.o
}
takes_modules() { # COMPILER
    echo 'export module nothing;' > "$out/nothing.cpp"
    (cd "$out" && case $1 in
    *clang*) $1 -std=c++20 -x c++-module --precompile -o nothing.pcm nothing.cpp ;;
    *) $1 -std=c++20 -fmodules-ts -c -o nothing.o nothing.cpp ;;
    esac) 2> /dev/null
}
for compiler in "${compilers[@]}"; do
    takes_modules "$compiler" || { left_out "modules of $compiler"; continue; }
    check "$compiler: a module" module "$compiler" ""
    check "$compiler: a module, streams per thread" module "$compiler" $per_thread
done

# ---- README.md's recipe: its commands as they stand, on a program that knows nothing of it ----
recipe() { # NVCC: a command or a function
    local steps
    steps=$(awk '/^\*\*An existing program/ { on = 1 } on && /^```$/ { exit } on && lines
                 on && /^```sh$/ { lines = 1 }' README.md)
    (($(wc -l <<< "$steps") == 3)) || { echo "no recipe of three commands"; return 1; }
    rm -rf "$out/beneath" && mkdir "$out/beneath" &&
        cp gpupool.h "$out/beneath" && cp tests/gates/compile/beneath.c "$out/beneath/program.cu" &&
        cd "$out/beneath" && eval "set -e; nvcc() { $1 \"\$@\"; }; $steps"
}
simulated_nvcc() { # as nvcc compiles and links, but C++ on the simulated GPU
    case " $* " in
    *' -c '*) "$CXX" -x c++ -isystem "$CUDA_HOME/include" -Wall -Wextra -Werror "$@" ;;
    *) "$CXX" -pthread "$@" "$BUILD/fakecuda/none.a" ;;
    esac
}
runs_beneath() { # only gpupool heeds the limit
    (CUDA_HOME=$here/tests/fakecuda recipe simulated_nvcc) && "$out/beneath/program" || return 1
    GPUPOOL_LIMIT=8MiB "$out/beneath/program"
    (($? == 2))
}
as_c() {
    $CC -isystem tests/fakecuda/include -I. -include gpupool.h -DGPUPOOL_REPLACE_CUDA_MALLOC=1 \
        -Wall -Wextra -Werror -c -o "$out/beneath.o" tests/gates/compile/beneath.c &&
        $CC $fake -c -o "$out/library.o" tests/support/library.c &&
        link_and_run "$out/beneath_c" "$CC" "$out"/{beneath,library}.o || return 1
    GPUPOOL_LIMIT=8MiB "$out/beneath_c"
    (($? == 2))
}
compiles_beneath() { (CUDA_HOME=$TOOLKIT recipe "$NVCC"); }
! works "$CXX" || check "the recipe beneath a program" runs_beneath
check "the same in C" as_c

# ---- nvcc: two passes ----
cu_files() { # FLAGS
    $NVCC $1 -I. -x cu -c -o "$out/cu_main.o" $main &&
        $NVCC $1 -I. -x cu -c -o "$out/cu_other.o" $other &&
        $NVCC -o "$out/cu" "$out/cu_main.o" "$out/cu_other.o"
}
cu_beside_cxx() {
    $CXX -std=c++17 -isystem "$TOOLKIT/include" -I. -c -o "$out/cxx_other.o" $other &&
        $NVCC -std=c++17 -I. -x cu -c -o "$out/cu_main.o" $main &&
        $NVCC -o "$out/cu" "$out/cu_main.o" "$out/cxx_other.o"
}
cu_quietly() { # FLAGS: nvcc's own headers are no system headers to it, and have warnings
    $NVCC $1 -I. -x cu -c -o "$out/cu.o" $other \
        -Xcompiler -Wall,-Wextra,-Wold-style-cast,-Wuseless-cast 2> "$out/cu_said" || return 1
    ! grep -E "gpupool\.h|#[0-9]+-D" "$out/cu_said"
}
if [[ $NVCC ]]; then
    for flags in -std=c++17 "-std=c++20 --default-stream per-thread"; do
        check "nvcc $flags: two files" cu_files "$flags"
        check "nvcc $flags: the same kernels in both passes" \
            same_kernels "$flags" 6 tests/gates/compile/names_kernels.cu
        check "nvcc $flags: no warning" cu_quietly "$flags"
    done
    check "nvcc: the same kernels of Thrust's" same_kernels -std=c++17 20 tests/gpu/names_other.cu
    check "nvcc beside $CXX" cu_beside_cxx
    check "nvcc: the recipe beneath a program" compiles_beneath
    check "nvcc, kernels that call CUDA's names" "$NVCC" -rdc=true -I. -o "$out/cu" \
        -Werror all-warnings tests/gates/compile/device_side.cu
else
    left_out nvcc
fi

echo "$passed passed, $failed failed"
((failed == 0))
