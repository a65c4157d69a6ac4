#!/bin/bash
# What the header and the files around it look like, and what the header may cost its reader. Each
# rule is also broken in a copy, where it must be noticed. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CC=${CC:-gcc} BUILD=${BUILD:-build}
out=$BUILD/hygiene
rm -rf "$out"
mkdir -p "$out"
. tests/gates/checks.sh

# ---- the header's text ----
rules() { awk -f tests/gates/hygiene.awk "$1"; }
check "the rules of the header" rules gpupool.h
cat "$out/said"

# A text whose figures are known: comments and strings that look like one another.
cat > "$out/known.h" << 'END_OF_TEXT'
/* nothing here counts
   int x; */
int before; // seven tokens
int top;
Contents (none)
#define GPI_TEXT "a /* b */ \" c"

static int gpi_a(int a, int (*b)(int, int), ...) { /* two parameters */
    for (int i = 0; i < a; i++) b(i >> 1, 0x1p3);
    return '"' == '\'' /* " */;
}
static int gpi_b(void) {
    return 1;
}
END_OF_TEXT
counts() { rules "$out/known.h" | grep -x "14 lines, 11 of code (11 .*), 75 tokens, 2 functions"; }
check "counts lines, code, tokens and functions" counts

notices() { # WORDS SED: the edit of the header must be noticed in those words
    sed "$2" gpupool.h > "$out/broken.h"
    check "notices: $1" is_noticed "$1"
}
is_noticed() { ! rules "$out/broken.h" > "$out/rules" && grep -e "$1" "$out/rules"; }
notices "tells history" 's,^/\* == BUDDY,/* FIXME */\n&,'
notices "where the contents have" 's/^\(    SYSTEM\) DRIVER/\1/'
notices "a function of STREAM in BUDDY" 's/^\(static .*\)gpi_buddy_/\1gpi_stream_/'
notices "declared before it" 's,^/\* == CHUNK,static int gpi_ladder_x(int);\n&,'
notices "columns: 101, at most 100" "1s/.*/$(printf '%101s' x)/"
notices "parameters: 6, at most 5" 's/^static .*gpi_buddy_[a-z]*(/&int a, int b, int c, int d, int e, /'
notices "two statements" 's/^    return result;/    int x = 0; return x;/'

planted() { # WORDS LINES TEXT: so many lines of that text at the end must be noticed in those words
    { cat gpupool.h; yes "$3" | head -n "$2"; } > "$out/broken.h"
    check "notices: $1" is_noticed "$1"
}
planted "lines of code in [A-Z]*: [0-9]*, at most 600" 600 'int x;'
planted "lines of code in the core: [0-9]*, at most 4200" 4201 '/* == BUDDY == */ int x;'
planted "lines of code: [0-9]*, at most 5500" 5501 'int x;'
planted "tokens: [0-9]*, at most 50000" 500 "$(printf '%*s' 100 '' | tr ' ' ,)"
planted "lines: [0-9]*, at most 8000" 8000 ''
planted "lines of a function: 51, at most 50" 51 "$(
    echo 'static void gpi_file_long(void) {'
    yes '    gpi_x++;' | head -n 49
    echo '}'
)"

# ---- the text of every file ----
sources=$(find gpupool.h examples tests .ci Makefile README.md -type f ! -path '*/traces/*')
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

# ---- the sweep of failing calls: tests/api/test_sweep.c calls every public function ----
public() {
    echo '#include "gpupool.h"' | $CC -x c -I. -Itests/fakecuda/include -E -P - |
        grep -oE '\bgpupool_[A-Za-z0-9_]+ *\(' | tr -d ' (' | sort -u
}
unswept() { # SED: public functions that the sweep does not name, when SED has changed its text
    cat tests/api/test_sweep.c tests/api/sweep_world.h tests/support/kit.h | sed "$1" |
        $CC -x c -fpreprocessed -E -P - | grep -oE 'gpupool_[A-Za-z0-9_]+' | sort -u > "$out/swept"
    comm -23 <(public) "$out/swept"
}
sweeps_all() { public | grep -qx gpupool_alloc && [[ -z $(unswept '' | tee /dev/stderr) ]]; }
misses() { [[ $(unswept "s/$1\\b/gpupool_none/") == "$1" ]]; }
check "the sweep of failing calls has every public function" sweeps_all
check "notices: a public function that is not in the sweep" misses gpupool_walk_blocks

echo "$passed passed, $failed failed"
((failed == 0))
