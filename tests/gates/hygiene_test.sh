#!/bin/bash
# What the header and the files around it look like. Each rule is also broken in a copy, where it
# must be noticed. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CC=${CC:-gcc} BUILD=${BUILD:-build}
out=$BUILD/hygiene
rm -rf "$out"
mkdir -p "$out"
. tests/gates/checks.sh

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
notices "tells history" 's,^/\* == BUDDY,/* FIXME */\n&,'
notices "where the contents have" 's/^\(    SYSTEM\) DRIVER/\1/'
notices "a function of STREAM in BUDDY" 's/^\(static .*\)gpi_buddy_/\1gpi_stream_/'
notices "declared before it" 's,^/\* == CHUNK,static int gpi_ladder_x(int);\n&,'

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
swept() { # SED: public functions that the sweep does not name, when SED has changed its text
    cat tests/api/test_sweep.c tests/api/sweep_world.h tests/support/kit.h | sed "$1" |
        $CC -x c -fpreprocessed -E -P - | grep -oE 'gpupool_[A-Za-z0-9_]+' | sort -u > "$out/swept"
    comm -23 <(public) "$out/swept"
}
sweeps_all() { public | grep -qx gpupool_alloc && quiet swept ''; }
misses() { [[ $(swept "s/$1\\b/gpupool_none/") == "$1" ]]; }
check "the sweep of failing calls has every public function" sweeps_all
check "notices: a public function that is not in the sweep" misses gpupool_walk_blocks

echo "$passed passed, $failed failed"
((failed == 0))
