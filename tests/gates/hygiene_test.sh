#!/bin/bash
# What the header and the files around it look like, and what the header leaves behind in a program:
# symbols, globals, macros. Each rule is also broken in a copy, where it must be noticed. Closes
# with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CC=${CC:-gcc} CXX=${CXX:-g++} BUILD=${BUILD:-build}
out=$BUILD/hygiene
rm -rf "$out"
mkdir -p "$out"
fake=-Itests/fakecuda/include
implementation=tests/support/library.c
. tests/gates/compile/checks.sh

quiet() { # COMMAND...: fails when the command says anything
    [[ -z $("$@" | tee /dev/stderr) ]]
}

# ---- the header's text ----
check "the rules of the header" quiet awk -f tests/gates/hygiene.awk gpupool.h

broken() { # WORDS SED: the edit must be noticed in those words
    sed "$2" gpupool.h > "$out/broken.h"
    ! cmp -s gpupool.h "$out/broken.h" && awk -f tests/gates/hygiene.awk "$out/broken.h" | grep "$1"
}
notices() { check "notices: $1" broken "$@"; }
notices "tells history" 's,^/\* == GROUND,/* FIXME */\n&,'
notices "where the contents have" 's/^\(    GROUND\) HOST/\1/'
notices "defined and left" '/^#undef GPI_PRINTF/d'
notices "was never defined" 's/^#undef GPI_PRINTF/&\n#undef GPI_PRINTS/'
notices "a name of RING in TREE" 's/^typedef struct gpi_list .*/#define GPI_X gpi_ring_x\n&/'
notices "a function of LEDGER in DRIVER" 's/^\(static .*gpi_\)driver_is_capturing/\1ledger_x/'
notices "declared before it" 's/^static int gpi_ground_is_power.*/&\nstatic int gpi_ground_x(int);/'
notices "a type without a body" 's/^static int gpi_ground_is_power.*/&\nstruct gpi_x;/'
printf '    ;\n%.0s' {1..60} > "$out/lines"
notices "a function of .* lines" "/^static int gpi_driver_is_capturing/r $out/lines"

# ---- constants that others rest on ----
# ---- the text of every file ----
sources=$(find gpupool.h examples tests .ci Makefile README.md -type f ! -path '*/traces/*' \
               ! -path '*/corpus/*')
absent() { # PATTERN LINE: the regular expression is in no source, but would be found in the line
    grep -qP -e "$1" <<< "$2" && ! grep -nIP -e "$1" $sources
}
check "no blanks at the end of a line" absent '[[:blank:]]$' 'x '
check "no carriage returns" absent $'\r' $'x\r'
check "no file of one machine" absent '(^|[] ="(:,])/(home|root|Users|mnt|srv|w[a-z]*)/' \
    '="'/home/me
sources=$(grep -E '\.(h|c|cu|cpp|py|sh|awk)$' <<< "$sources")
check "no tabs" absent $'\t' $'\tx'
# A sed command cannot be broken.
check "100 columns" absent "^(?!.*[ ']s/).{101}" "$(printf '%101s' x)"

# ---- what is left behind ----
symbols() { # COMPILER FLAGS: "type name" of all that the implementation defines; compiled once
    local object="$out/symbols-${1//\//_}-${2// /}.o"
    [[ -e $object ]] || $1 $2 $fake -O0 -fno-pie -c -o "$object" $implementation || return 1
    nm -C --defined-only "$object" | sed -n 's/^[0-9a-f]* //p'
}

# ---- the sweep of failing calls ----
# tests/api/test_sweep.c calls every public function. Its text counts without comments.
swept() { # SED: public functions that the sweep does not name, when SED has changed its text
    symbols "$CC" "-x c -std=c11" | sed -n 's/^T \(gpupool_[A-Za-z0-9_]*\)$/\1/p' | sort -u \
        > "$out/public"
    cat tests/api/test_sweep.c tests/api/sweep_*.h | sed "$1" | $CC -x c -fpreprocessed -E -P - |
        grep -oE 'gpupool_[A-Za-z0-9_]+' | sort -u > "$out/swept"
    comm -23 "$out/public" "$out/swept"
}
sweeps_all() {
    local left
    left=$(swept '')
    [[ -s $out/public && -z $left ]] || { printf 'not in the sweep:\n%s\n' "$left"; return 1; }
}
misses() { [[ $(swept "s/$1\\b/gpupool_none/") == "$1" ]]; }
check "the sweep of failing calls has every public function" sweeps_all
check "notices: a public function that is not in the sweep" misses gpupool_ring_trim

only_ours() { # COMPILER FLAGS
    local list others
    list=$(symbols "$1" "$2") || return 1
    others=$(echo "$list" | grep '^[A-Z] ' | grep -Ev '^[A-Z] gpupool_[A-Za-z0-9_]+$')
    [[ -z $others ]] || { printf 'exported:\n%s\n' "$others"; return 1; }
    # An empty list would pass the line above.
    grep -q "^T gpupool_alloc$" <<< "$list" || { echo "gpupool_alloc is hidden"; return 1; }
}

nothing_shows() { # COMPILER FLAGS: with GPUPOOL_STATIC
    local list
    list=$(symbols "$1" "$2 -DGPUPOOL_STATIC=1 -fkeep-static-functions") || return 1
    ! grep '^[A-Z] ' <<< "$list" || return 1
    grep -q '^t gpupool_alloc\b' <<< "$list" || { echo "no gpupool_alloc"; return 1; }
}

no_other_globals() { # COMPILER FLAGS
    local list others
    list=$(symbols "$1" "$2") || return 1
    others=$(echo "$list" | grep -i '^[bdcsg] ' |
        grep -Evf <(sed -n 's/^\([^#].*\)/^[a-zA-Z] \1$/p' tests/gates/compile/globals.txt))
    [[ -z $others ]] || { printf 'writable globals:\n%s\n' "$others"; return 1; }
}

macros() { # COMPILER FLAGS SOURCE
    $1 $2 $fake -I. -dM -E "$3" | sed -n 's/^#define \([A-Za-z0-9_]*\).*/\1/p' | sort -u
}

# What the header's own includes define is not the header's doing: a file of those includes alone
# is the measure. gcc -H lists them: two dots for what the header includes itself. The macros of the
# last room, NAMES, are meant to be left: cudaStreamDestroy tells the arenas.
no_other_macros() { # COMPILER FLAGS SOURCE NAMES: extended regular expression
    local others
    macros "$1" "$2" "$3" > "$out/with"
    $1 $2 $fake -H -fsyntax-only "$3" 2>&1 |
        sed -n 's,^\.\. \(.*\),#include "\1",p' > "$out/includes.c"
    macros "$1" "$2" "$out/includes.c" > "$out/without"
    grep -q '^GPUPOOL_H$' "$out/with" || { echo "GPUPOOL_H is not defined"; return 1; }
    others=$(comm -23 "$out/with" "$out/without" | grep -Ev "^(GPUPOOL_[A-Z_]*|USER_H|$4)\$")
    [[ -z $others ]] || { printf 'macros left over:\n%s\n' "$others"; return 1; }
}

left_behind() { # COMPILER FLAGS
    check "$1: symbols" only_ours "$1" "$2"
    check "$1: GPUPOOL_STATIC" nothing_shows "$1" "$2"
    check "$1: globals" no_other_globals "$1" "$2"
    for source in tests/gates/compile/user.c $implementation; do
        check "$1: macros of $source" no_other_macros "$1" "$2" $source cudaStreamDestroy
        check "$1: macros of $source, without the hook" no_other_macros "$1" \
            "$2 -DGPUPOOL_STREAM_HOOK=0" $source gpupool_none
        check "$1: macros of $source, streams per thread, sites" no_other_macros "$1" \
            "$2 -DCUDA_API_PER_THREAD_DEFAULT_STREAM -DGPUPOOL_SITES=1" $source \
            'cudaStreamDestroy|CUDA_API_PER_THREAD_DEFAULT_STREAM|gpupool_[A-Za-z0-9_]*'
        check "$1: macros of $source, cudaMalloc replaced" no_other_macros "$1" \
            "$2 -DGPUPOOL_REPLACE_CUDA_MALLOC=1" $source 'cuda(StreamDestroy|(Malloc|Free)(Async)?)'
    done
}
left_behind "$CC" "-x c -std=c11"
if works "$CXX"; then left_behind "$CXX" "-x c++ -std=c++17"; else left_out "$CXX"; fi

echo "$passed passed, $failed failed"
((failed == 0))
