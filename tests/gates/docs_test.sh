#!/bin/bash
# What gpupool.h's door, README.md and tests/README.md say: programs that readers paste compile and
# run, options and results are those of the code; names, files and figures are there. Says `N
# passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CC=${CC:-gcc} BUILD=${BUILD:-build} TOOLKIT=${TOOLKIT:-}
out=$BUILD/docs
rm -rf "$out"
mkdir -p "$out"
cuda=-Itests/fakecuda/include
[[ -z $TOOLKIT ]] || cuda="-isystem $TOOLKIT/include"
. tests/gates/compile/checks.sh

# ---- programs ----
# In the door, C++ comments stand for C ones, which would end the comment that it is in.
awk '/^A complete program:/ { on = 1; next } on && /^[^ ]/ { exit } on { sub("//.*", ""); print }' \
    gpupool.h > "$out/door.c"
awk -v out="$out" '/^```c$/ { n++; on = 1; next } /^```/ { on = 0 }
                   on { print > (out "/readme" n ".c") }' README.md
runs() { # FILE.c
    $CC -std=c99 -Wall -Wextra -Werror -I. $cuda -o "${1%.c}" "$1" "$BUILD/fakecuda/none.a" \
        -pthread && "${1%.c}"
}
for program in "$out"/*.c; do check "a program runs: $program" runs "$program"; done
says_so() { # README.md's text: how the first program's report begins
    awk '/^```text$/ { on = 1; next } on && /^```$/ { exit } on' README.md > "$out/said_to_print"
    [[ -s $out/said_to_print ]] && "$out/readme1" |
        head -n "$(wc -l < "$out/said_to_print")" | diff "$out/said_to_print" -
}
check "what README.md's first program prints" says_so

# ---- lists that must be the same, and not empty ----
same() { # COMMAND COMMAND: print the same lines
    "$1" | sort > "$out/one"
    "$2" | sort > "$out/other"
    [[ -s $out/one ]] && diff "$out/one" "$out/other"
}

# ---- options: macros that the header leaves alone where they are defined already ----
# A table's row begins with name and default. What has no number there is not compared.
number() { # of "512", "64 MiB", `extern`
    case $1 in
    *[!0-9\ MiB]* | '') ;;
    *MiB) echo $((${1% MiB} << 20)) ;;
    *) echo "$1" ;;
    esac
}
numbers() { # reads "NAME=DEFAULT" lines
    while IFS='=' read -r name default; do echo "$name $(number "$default")"; done
}
options_of_code() {
    awk '/^#ifndef GPUPOOL_/ { name = $2 }
         /^#define GPUPOOL_/ { split($2, part, "(") }
         /^#define GPUPOOL_/ && part[1] == name { print name "=" $3; name = "" }' gpupool.h |
        grep -v '^GPUPOOL_H=' | numbers
}
options_of_door() {
    awk '/^Options: / { on = 1 } /^\*\// { exit } on' gpupool.h |
        sed -nE 's/^    (GPUPOOL_[A-Z_]+)(\([a-z]\))?( \*)? +([^ ]+( MiB)?) .*/\1=\4/p' | numbers
}
options_of_readme() {
    awk '/^## / { on = $2 == "Options" } on' README.md |
        sed -nE 's/^\| `(GPUPOOL_[A-Z_]+).* \| ([^|]*) \|.*\|$/\1=\2/p' | numbers
}
is_used() { # OPTION: beyond its default
    (($(grep -E "\b$1\b" "$out/code" | grep -cvE "^#(ifndef|define) $1\b") > 0))
}
cat gpupool.h > "$out/code.c"
$CC -fpreprocessed -dD -E -P -w "$out/code.c" > "$out/code"
check "the options in the door are the code's" same options_of_code options_of_door
check "the options in README.md are the code's" same options_of_code options_of_readme
for option in $(options_of_code | sed 's/ .*//'); do
    check "the option $option is used" is_used "$option"
done

# ---- results: each in README.md's table, and produced in test_results.c, which checks that ----
results_of_code() {
    awk '/^typedef enum gpupool_result / { on = 1 } /^}/ { on = 0 } on' gpupool.h |
        sed -nE 's/^ +(GPUPOOL_[A-Z_]+).*/\1/p'
}
results_of_readme() { sed -nE 's/^\| `(GPUPOOL_(OK|E_[A-Z_]+))` \|.*/\1/p' README.md; }
results_of_test() { grep -oE 'GPUPOOL_(OK|E_[A-Z_]+)' tests/unit/test_results.c | sort -u; }
check "the results in README.md are the code's" same results_of_code results_of_readme
check "the results in test_results.c are the code's" same results_of_code results_of_test

# ---- names: what is written of is there, and what is there is written of ----
names() { grep -ohE '\b(gpupool|GPUPOOL)_[A-Za-z_]*[A-Za-z]\b' "$@" | sort -u; }
every_name_exists() {
    local unknown
    $CC $cuda -dD -E tests/support/library.c > "$out/library.txt"
    # LIMIT_0 and the like are names in the environment.
    unknown=$(names README.md gpupool.h | comm -23 - <(names "$out/library.txt"))
    [[ -z $unknown ]] || { echo "no such name: $unknown"; return 1; }
}
check "names in README.md and the header's comments" every_name_exists
# In its paragraph, or in that of its section just above, or in README.md.
every_call_is_documented() {
    awk '/^\/\* == API/ { on = 1 } /^#endif \/\* GPUPOOL_H/ { exit } on' gpupool.h |
        awk 'BEGIN { RS = "" } { calls = $0 ~ /GPUPOOL_API/ }
             calls && !/\/\*/ && !section { print "no comment: " $0; bad = 1 }
             { section = !calls; seen += calls } END { exit bad || seen < 20 }'
}
check "every public call has its comment" every_call_is_documented

# ---- what README.md tells readers to run and to look at ----
every_target_exists() {
    local targets target
    targets=$(sed -nE 's/^    make ([a-z][a-z/-]*).*/\1/p' README.md tests/README.md
        grep -ohE '`make [a-z0-9-]+' README.md tests/README.md | sed 's/`make //')
    [[ $targets ]] || return 1
    for target in $targets; do
        [[ $target != build/test/* ]] || continue
        grep -qE "^(${target}:|TOOLS := .*\b${target#build/}\b)" Makefile tests/*.mk tests/*/*.mk ||
            { echo "no target: $target"; return 1; }
    done
}
check "what the README.md say to make" every_target_exists
every_file_exists() {
    local file seen=0
    for file in $(grep -ohE '\b(examples|tests)/[A-Za-z0-9_./-]*[a-z]' README.md tests/README.md \
        tests/fakecuda/README.md | sort -u); do
        [[ -e $file ]] || { echo "no file: $file"; return 1; }
        seen=$((seen + 1))
    done
    # A line of examples names them without the folder.
    for file in $(awk '/^## / { on = $2 == "Examples" } on' README.md | grep -oE '`[a-z_.]+`'); do
        compgen -G "examples/${file//\`/}*" > /dev/null || { echo "no example: $file"; return 1; }
        seen=$((seen + 1))
    done
    ((seen > 10))
}
check "the files in README.md" every_file_exists

# ---- figures in tests/README.md, with FIGURES=1: what programs print, or have in `make test` ----
said_by() { # PROGRAM
    if [[ $BUILD/log/$1.out -nt $BUILD/test/$1 ]]; then cat "$BUILD/log/$1.out"
    else "$BUILD/test/$1"; fi
}
figure() { # WORDS NUMBER: tests/README.md has the words, and the number rounds to theirs
    tr -s '\n ' ' ' < tests/README.md | grep -qF "$1" ||
        { echo "not in tests/README.md"; return 1; }
    echo "$1" | awk -v number="$2" '{
        gsub(",", "", $1)
        scale = $2 == "million" ? 1e6 : 1
        digits = $1 ~ /\./ ? length($1) - index($1, ".") : 0
        print "is " number
        exit !(number != "" && sprintf("%.*f", digits, number / scale) == $1) }'
}
count() { # PROGRAM PATTERN: the number before the pattern's words
    said_by "$1" | sed -nE "s/^$2.*/\1/p"
}
if [[ ${FIGURES:-} ]]; then
    of=test_tree-plain
    few="8 units, anybody's memory, two streams: "
    check "states of 8 units" figure "107,621 states" "$(count $of "$few([0-9]+) states")"
    check "calls in them" figure "3.2 million calls" \
        "$(count $of "$few[0-9]+ states, ([0-9]+) calls")"
    of=test_tree_long-plain
    many='16 units, one list: '
    check "states of 16 units" figure "3.5 million states" "$(count $of "$many([0-9]+) states")"
    check "calls in them" figure "51 million calls" \
        "$(count $of "$many[0-9]+ states, ([0-9]+) calls")"
    check "wrong calls" figure "15.3 million" \
        "$(count test_tree_misuse-plain '([0-9]+) wrong calls')"
    check "saboteurs" figure "133 ways" \
        "$(awk '/^} saboteurs/ || /saboteurs\[\] = \{/ { on = 1 } /^};/ { on = 0 }
                on && /^    [A-Z]+\("/ { n++ } END { print n }' tests/unit/test_sabotage.c)"
fi

echo "$passed passed, $failed failed"
((failed == 0))
