#!/bin/bash
# What the pages say: programs and recipes that readers paste compile and run; names, targets and
# files that they speak of are there. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CC=${CC:-gcc} CXX=${CXX:-g++} BUILD=${BUILD:-build}
out=$BUILD/docs cuda="-I. -isystem tests/fakecuda/include"
rm -rf "$out"
mkdir -p "$out"
. tests/gates/checks.sh
pages="README.md examples/README.md tests/README.md tests/fakecuda/README.md"

# ---- programs and recipes ----
# README.md's code blocks that have a main are programs; the other ones are recipes, which
# tests/gates/recipes.h makes programs of.
awk -v out="$out" '/^```(c|cpp|text)$/ { on = substr($0, 4); n[on]++; next }
                   /^```/ { on = "" }
                   on { print > (out "/readme" n[on] "." on) }' README.md
compile_and_run() { # FILE FLAGS
    local compiler="$CC -std=gnu11"
    [[ $1 == *.c ]] || compiler="$CXX -std=c++11"
    $compiler ${2:-} -D_GNU_SOURCE -Wall -Wextra -Werror -Wno-unused -Wno-unused-parameter $cuda \
        -o "$1.run" "$1" "$BUILD/fakecuda/none.a" -lm -ldl -pthread && "$1.run"
}
recipe() { # FILE FLAGS: its structs and functions as they stand, the other lines as a body
    local source=${1%.*}_run.${1##*.}
    awk 'BEGIN { print "#include \"tests/gates/recipes.h\"" }
         function open() { if (!body++) print "static void recipe(GIVEN) {" }
         /^struct / { print; next }
         /^int .*\{$/ { top = 1 }
         !top { open() }
         { print }
         /^}/ { top = 0 }
         END { open(); print "}" }' "$1" > "$source"
    compile_and_run "$source" "${2:-}"
}
programs=0 recipes=0
for source in "$out"/readme*.c "$out"/readme*.cpp; do
    if [[ $source == *.cpp ]] && ! works "$CXX"; then left_out "$CXX"; continue; fi
    if grep -q ' main(' "$source"; then
        check "a program of README.md runs: $source" compile_and_run "$source"
        programs=$((programs + 1))
    else
        check "a recipe runs: $(head -n 1 "$source")" recipe "$source"
        recipes=$((recipes + 1))
    fi
done
check "README.md has programs and recipes" test $programs -ge 1 -a $recipes -ge 3
says_so() { # README.md's text: how the first program's report begins
    "$out/readme1.c.run" | head -n "$(wc -l < "$out/readme1.text")" | diff "$out/readme1.text" -
}
check "what README.md's first program prints" says_so
out_of_memory() { # README.md's second text: what the recipe about it prints
    recipe "$(grep -l 'gpupool_last_error' "$out"/readme[2-9].c)" -DRECIPE_FAILS 2>&1 |
        diff "$out/readme2.text" -
}
check "what README.md says about out of memory" out_of_memory

# ---- names, targets, files ----
names() { grep -ohE '\b(gpupool|GPUPOOL)_[A-Za-z_]*[A-Za-z]\b' "$@" | sort -u; }
every_name_exists() { # in the header, or among the files; LIMIT_<device> is one of the environment
    local unknown
    unknown=$(names $pages | comm -23 - <(names gpupool.h examples/*.* tests/gates/*.* | sort -u))
    [[ -z $unknown ]] || { echo "no such name: $unknown"; return 1; }
}
check "names in $pages" every_name_exists
every_target_exists() {
    local targets target
    targets=$(sed -nE 's/^    make ([a-z][a-z/-]*).*/\1/p' $pages
        grep -ohE '`make [a-z0-9/.-]+' $pages | sed 's/`make //')
    [[ $targets ]] || return 1
    for target in $targets; do
        [[ $target != build/*/* ]] || continue
        grep -qE "^(${target}:|TOOLS := .*\b${target#build/}\b)" Makefile tests/*.mk tests/*/*.mk ||
            { echo "no target: $target"; return 1; }
    done
}
check "what $pages say to make" every_target_exists
every_file_exists() {
    local file seen=0
    for file in $(grep -ohE '\b(examples|tests)/[A-Za-z0-9_./-]*[a-z]' $pages | sort -u); do
        [[ -e $file ]] || { echo "no file: $file"; return 1; }
        seen=$((seen + 1))
    done
    ((seen > 5))
}
check "the files in $pages" every_file_exists
fits() { # README.md: a page that is read
    awk '/^```/ { code = !code }
         length > 120 && !/^\|/ && !code { print "too long: " $0; bad = 1 }
         END { print NR " lines"; exit bad || NR > 250 }' README.md
}
check "README.md has 250 lines of 120 columns" fits
echo "$passed passed, $failed failed"
((failed == 0))
