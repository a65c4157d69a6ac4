#!/bin/bash
# The header for Windows: compiled by mingw-w64 as C and C++, its integer rooms run under wine, and
# no POSIX name outside HOST and FILE. Says `N passed, N failed`, and what it left out.
set -u
cd "$(dirname "$0")/../.."
CC=${CC:-gcc} BUILD=${BUILD:-build}
out=$BUILD/windows fake=-Itests/fakecuda/include
mkdir -p "$out"
strict="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef -Wcast-qual
        -Wswitch-enum -Werror"
implementation=tests/support/library.c
. tests/gates/compile/checks.sh

# What only POSIX has, or only Windows: in HOST and FILE alone, where it stands behind an #if.
system_names='pthread|sched_yield|select\(|timeval|unistd|sys/|fork\(|getpid|clock_gettime'
system_names="$system_names|nanosleep|sysconf|mmap|_WIN32|windows\.h|Interlocked|Sleep\("
only_in_host() {
    local others
    others=$(awk '/^\/\* == / { room = $3 }
                  room != "HOST" && room != "FILE" { print FNR ": " $0 }' gpupool.h |
        grep -E "^[0-9]+: .*\b($system_names)" | grep -v '^[0-9]*: */\*')
    [[ -z $others ]] || { printf 'outside HOST and FILE:\n%s\n' "$others"; return 1; }
    # A pattern that finds nothing anywhere would pass the line above.
    grep -Eq "\b($system_names)" gpupool.h
}
check "system names" only_in_host

compiles() { # COMPILER LANGUAGE STANDARD...
    works "$1" || { left_out "$1"; return; }
    for standard in "${@:3}"; do
        for source in $implementation tests/gates/compile/user.c; do
            check "$1 $standard $source" "$1" -x "$2" -std="$standard" $strict $fake -O1 \
                -c -o "$out/x.o" $source
        done
    done
}
compiles x86_64-w64-mingw32-gcc c c99 c11 c17
compiles x86_64-w64-mingw32-g++ c++ c++11 c++17 c++20

# Static, so that what calls CUDA is left out: there is none to link.
runs() { # TEST FLAGS...
    x86_64-w64-mingw32-gcc -std=c11 -O2 $fake -I. -Itests -Itests/support -DGPUPOOL_STATIC=1 \
        "${@:2}" -o "$out/$1.exe" "tests/unit/$1.c" && WINEDEBUG=-all wine "$out/$1.exe"
}
if ! works x86_64-w64-mingw32-gcc || ! command -v wine > /dev/null; then
    left_out "tests under wine"
else
    check "ground under wine" runs test_ground
    check "tree under wine" runs test_tree -DFEW_UNITS=6
    check "large trees under wine" runs test_tree_large
    check "a tree's host memory under wine" runs test_tree_memory
fi

echo "$passed passed, $failed failed"
((failed == 0))
