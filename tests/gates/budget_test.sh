#!/bin/bash
# The header's budget: lines of code, tokens, functions. Each bound is also broken in a small text,
# where it must be named. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
header=gpupool.h
out=$BUILD/budget
rm -rf "$out"
mkdir -p "$out"
. tests/gates/checks.sh

budget() { awk -v QUIET="${2:-1}" -f tests/gates/budget.awk "$1"; }
check "the header's budget" budget $header 0
cat "$out/said"

# A text whose figures are known: comments and strings that look like one another.
cat > "$out/known.h" << 'END'
/* nothing here counts
   int x; */
int before; // seven tokens
int top;
/* == SYSTEM ===== */
#define GPI_TEXT "a /* b */ \" c"

static int gpi_a(int a, int (*b)(int, int), ...) { /* two parameters */
    for (int i = 0; i < a; i++) b(i >> 1, 0x1p3);
    return '"' == '\'' /* " */;
}
/* == RING ======= */
static int gpi_b(void) {
    return 1;
}
END
knows() { # LINE: of the table, blanks squeezed
    awk -f tests/gates/budget.awk "$out/known.h" | tr -s ' ' | grep -x -e " *$1"
}
check "counts what is before the first section" knows "TOP 2 6"
check "counts a section" knows "SYSTEM 5 54"
check "counts the last section" knows "RING 3 11"
check "the core is without the ring" knows "the core 7 60 4200"
check "counts all" knows "the header 10 71 5500"
check "counts functions" knows "15 lines, 2 functions"

planted() { # LINES TEXT SECTION: that text and so many such lines, in a section of that name
    { cat "$out/known.h"; echo "/* == $3 ===="; echo "*/"; yes "$2" | head -n "$1"; } \
        > "$out/planted.h"
}
# An excess must be named, in the words of a regular expression, and fail.
named() { ! budget "$out/planted.h" > "$out/excesses" && grep -x -e "EXCESS $1" "$out/excesses"; }
notices() { # WORDS LINES TEXT SECTION
    planted "${@:2}"
    check "notices: $1" named "$1"
}
quiet_at() { # LINES TEXT SECTION: no excess
    planted "$@"
    check "allows $1 lines of ${2:0:20}" budget "$out/planted.h"
}
x='extern int gpi_x;'
notices "FILE: lines of code: 601, at most 600" 601 "$x" FILE
quiet_at 600 "$x" FILE
quiet_at 600 "/* $x */" CHECK
notices "the core: lines of code: 4201, at most 4200" 4194 "$x" CHECK
many() { yes 'x,' | head -n "$1" | tr -d '\n'; } # twice as many tokens
notices "the core: tokens: [0-9]*, at most 39000" 782 "$(many 25)" CHECK
notices "the header: lines of code: 5501, at most 5500" 5491 "$x" FILE
notices "the header: tokens: [0-9]*, at most 50000" 602 "$(many 43)" RING
notices "the header: lines: [0-9]*, at most 8000" 8000 "" RING
notices "ATTIC: a section of no group" 1 "$x" ATTIC
notices "line [0-9]*: columns: 101, at most 100" 1 "$(printf '%101s' x)" RING

body() { # LINES: a function of so many
    printf 'static void gpi_long(void) {\n'
    yes '    gpi_x++;' | head -n $(($1 - 2))
    printf '}'
}
notices "line [0-9]*: gpi_long: lines: 51, at most 50" 51 "$(body 51)" RING
quiet_at 50 "$(body 50)" RING
notices "line [0-9]*: gpi_x: parameters: 6, at most 5" 1 \
    'static int gpi_x(int a, int b, int c, int (*d)(int, int), int e, int f) { return 0; }' RING
quiet_at 1 \
    'static int gpi_x(int a, int b, int c, int (*d)(int, int), int e, ...) { return 0; }' RING
notices "line [0-9]*: two statements" 1 'static int gpi_x(void) { int x = 1; return x; }' RING
quiet_at 1 'static int gpi_x(void) { for (int x = 1; x; x--) return ";;"[x]; }' RING

echo "$passed passed, $failed failed"
((failed == 0))
