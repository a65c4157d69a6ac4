#!/bin/bash
# The order of the header's sections: each one compiles, and finds all that it calls, with only
# those above it. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../../.."
CC=${CC:-gcc} BUILD=${BUILD:-build} JOBS=${JOBS:-2}
export out=$BUILD/order
export QUICK_CC=$CC # clang is quicker, where there is one
! command -v clang > /dev/null || QUICK_CC=clang
rm -rf "$out"
mkdir -p "$out"

# Writes $out/SECTION.h for each section of the implementation: the header down to its end.
parts() {
    awk -v out="$out" '
        /^#if defined\(GPUPOOL_IMPLEMENTATION\)/ { begun = 1 }
        begun && /^\/\* == [A-Z]+ =/ {
            if (section) printf "%s#endif\n", text > (out "/" section ".h")
            close(out "/" section ".h")
            section = $3
            if (section == "BACK") exit
        }
        { text = text $0 "\n" }' "${1:-gpupool.h}"
}

# A static function that is called and not defined is a warning of the compiler; a public one is an
# undefined symbol of the object.
stands_alone() { # SECTION
    echo '#define GPUPOOL_IMPLEMENTATION' | cat - "$out/$1.h" > "$out/$1.c"
    $QUICK_CC -std=c11 -O0 -Itests/fakecuda/include -Wall -Wno-unused -Werror \
        -c -o "$out/$1.o" "$out/$1.c" &&
        ! nm -u "$out/$1.o" | grep ' gp[iu]'
}

section() { # SECTION: one line of the result
    if stands_alone "$1" > "$out/$1.said" 2>&1; then echo "ok $1"
    else echo "FAILED section $1 needs something below it"; head -n 5 "$out/$1.said"; fi
}
export -f stands_alone section

# A call of a section below, static or public, must be seen.
planted() { # NAME CALL: in the first section
    local call="static int gpi_ground_planted(void) { return $2; }"
    parts <(sed "/^static uint64_t gpi_ground_min/i $call" gpupool.h)
    if stands_alone GROUND > /dev/null 2>&1; then echo "FAILED a planted call is not seen: $1"
    else echo "ok planted $1"; fi
}

planted static 'gpi_tree_largest(0, 0) != 0' > "$out/results"
planted public 'gpupool_trim(0, 0) != 0' >> "$out/results"
parts
ls "$out"/*.h | xargs -n 1 basename -s .h |
    xargs -P "$JOBS" -I{} bash -c 'section {}' >> "$out/results"
grep -v '^ok' "$out/results"
passed=$(grep -c '^ok' "$out/results") failed=$(grep -c '^FAILED' "$out/results")
echo "$passed passed, $failed failed"
((failed == 0 && passed > 40))
