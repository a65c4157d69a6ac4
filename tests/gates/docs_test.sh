#!/bin/bash
# What the top comment of gpupool.h, README.md and the other pages say: programs and recipes that
# readers paste compile and run; options and results are those of the code; names, calls, targets,
# files and pictures are there. Says `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CC=${CC:-gcc} CXX=${CXX:-g++} BUILD=${BUILD:-build} TOOLKIT=${TOOLKIT:-}
out=$BUILD/docs
rm -rf "$out"
mkdir -p "$out"
cuda=-Itests/fakecuda/include
quick_cc=$CC # clang is quicker, where there is one
! command -v clang > /dev/null || quick_cc=clang
[[ -z $TOOLKIT ]] || cuda="-isystem $TOOLKIT/include"
. tests/gates/compile/checks.sh
pages="README.md examples/README.md tests/README.md tests/fakecuda/README.md"

# ---- programs and recipes ----
# README.md's first program is the header's, but for comments: in the header's top comment it has //
# comments, since */ would end the top comment. The other code blocks are recipes, which
# tests/gates/compile/recipes.h makes programs of.
awk '/^A complete program:/ { on = 1; next } on && /^[^ ]/ { exit }
     on { sub("^    ", ""); print }' gpupool.h > "$out/header.c"
awk -v out="$out" '/^```(c|cpp|python|text)$/ { on = substr($0, 4); n[on]++; next }
                   /^```/ { on = "" }
                   on { print > (out "/readme" n[on] "." on) }' README.md
without_comments() { sed -E 's, *(//.*|/\*.*\*/),,' "$1" | grep .; }
same_program() { diff <(without_comments "$out/header.c") <(without_comments "$out/readme1.c"); }
check "the program of README.md is the header's" same_program
runs() { # FILE.c
    $CC -std=c99 -Wall -Wextra -Werror -I. $cuda -o "${1%.c}" "$1" "$BUILD/fakecuda/none.a" \
        -pthread && "${1%.c}"
}
check "the program of README.md runs" runs "$out/readme1.c"
says_so() { # README.md's text: how the first program's report begins
    [[ -s $out/readme1.text ]] && "$out/readme1" |
        head -n "$(wc -l < "$out/readme1.text")" | diff "$out/readme1.text" -
}
check "what README.md's first program prints" says_so

recipe() { # FILE: its structs and functions as they stand, the other lines as a function's body
    awk 'BEGIN { print "#include \"tests/gates/compile/recipes.h\"" }
         function open() { if (!body++) print "static void recipe(GIVEN) {" }
         /^struct / { print; next }
         /^int .*\{$/ { top = 1 }
         !top { open() }
         { print }
         /^}/ { top = 0 }
         END { open(); print "}" }' "$1"
}
recipe_runs() { # FILE.c or FILE.cpp, FLAGS
    local source=${1%.*}_run.${1##*.} compiler="$quick_cc -std=gnu11"
    [[ $1 == *.c ]] || compiler="$CXX -std=c++11"
    recipe "$1" > "$source"
    $compiler ${2:-} -D_GNU_SOURCE -Wall -Wextra -Werror -Wno-unused -Wno-unused-parameter \
        -I. $cuda -o "${source%.*}" \
        "$source" "$BUILD/fakecuda/none.a" -pthread && "${source%.*}"
}
recipes=0
for program in "$out"/readme*.c "$out"/readme*.cpp; do
    [[ $program != */readme1.c ]] || continue
    if [[ $program == *.cpp ]] && ! works "$CXX"; then left_out "$CXX"; continue; fi
    check "a recipe runs: $(head -n 1 "$program")" recipe_runs "$program"
    recipes=$((recipes + 1))
done
check "README.md has recipes" test $recipes -ge 4
out_of_memory() { # README.md's second text: what the recipe about it prints
    recipe_runs "$(grep -l 'gpupool_last_error' "$out"/readme[2-9].c)" -DRECIPE_FAILS 2>&1 |
        diff "$out/readme2.text" -
}
check "what README.md says about out of memory" out_of_memory
python_recipe() { # each MODULE.FUNCTION() in it is one of examples/MODULE.py
    local call
    for call in $(grep -oE '[a-z_]+\.[a-z_]+\(' "$out"/readme*.python); do
        grep -q "^def ${call#*.}" "examples/${call%%.*}.py" || { echo "no $call)"; return 1; }
    done
    [[ ${call:-} ]]
}
check "README.md's Python" python_recipe

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
options_of_top() {
    awk '/^Options: / { on = 1 } /^\*\// { exit } on' gpupool.h |
        sed -nE 's/^    (GPUPOOL_[A-Z_]+)(\([a-z]\))?( \*)? +([^ ]+( MiB)?) .*/\1=\4/p' | numbers
}
is_used() { # OPTION: beyond its default
    (($(grep -E "\b$1\b" "$out/code" | grep -cvE "^#(ifndef|define) $1\b") > 0))
}
cat gpupool.h > "$out/code.c"
$CC -fpreprocessed -dD -E -P -w "$out/code.c" > "$out/code"
check "the options in the top comment are the code's" same options_of_code options_of_top
for option in $(options_of_code | sed 's/ .*//'); do
    check "the option $option is used" is_used "$option"
done

# ---- results: each in the table of examples/README.md, and produced in test_results.c ----
results_of_code() {
    awk '/^typedef enum gpupool_result / { on = 1 } /^}/ { on = 0 } on' gpupool.h |
        sed -nE 's/^ +(GPUPOOL_[A-Z_]+).*/\1/p'
}
results_of_table() { sed -nE 's/^\| `(GPUPOOL_(OK|E_[A-Z_]+))` \|.*/\1/p' examples/README.md; }
results_of_test() { grep -oE 'GPUPOOL_(OK|E_[A-Z_]+)' tests/unit/test_results.c | sort -u; }
check "the results in examples/README.md are the code's" same results_of_code results_of_table
check "the results in test_results.c are the code's" same results_of_code results_of_test

# ---- names: what is written of is there, and what is there is written of ----
names() { grep -ohE '\b(gpupool|GPUPOOL)_[A-Za-z_]*[A-Za-z]\b' "$@" | sort -u; }
every_name_exists() {
    local unknown
    $CC $cuda -dD -E tests/support/library.c > "$out/library.txt"
    # LIMIT_0 and the like are names in the environment.
    unknown=$(names $pages gpupool.h | comm -23 - <(names "$out/library.txt"))
    [[ -z $unknown ]] || { echo "no such name: $unknown"; return 1; }
}
check "names in $pages and the header's comments" every_name_exists
# In its paragraph, or in that of its section just above.
every_call_is_documented() {
    awk '/^\/\* == API/ { on = 1 } /^#endif \/\* GPUPOOL_H/ { exit } on' gpupool.h |
        awk 'BEGIN { RS = "" } { calls = $0 ~ /GPUPOOL_API/ }
             calls && !/\/\*/ && !section { print "no comment: " $0; bad = 1 }
             { section = !calls; seen += calls } END { exit bad || seen < 20 }'
}
check "every public call has its comment" every_call_is_documented

# ---- what the pages tell readers to run and to look at ----
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
examples_there() {
    ls examples | grep -vE '^(README.md|run_examples.sh|pictures|next|__pycache__)$'
}
examples_in_table() {
    grep -oE '`[a-z_]+\.(cu|cpp|c|py|hpp)`' examples/README.md | tr -d '`' | sort -u
}
check "the examples in examples/README.md" same examples_there examples_in_table
fits() { # README.md: a page that is read
    awk '/^```/ { code = !code }
         length > 120 && !/^\|/ && !code { print "too long: " $0; bad = 1 }
         END { print NR " lines"; exit bad || NR > 250 }' README.md
}
check "README.md has 250 lines of 120 columns" fits
picture() { # FILE.svg: in README.md, and small
    grep -qF "($1)" README.md && grep -q '^</svg>$' "$1" && (($(wc -c < "$1") < 200000))
}
for file in examples/pictures/*.svg; do check "picture: $file" picture "$file"; done
as_drawn() { awk -f tests/bench/reserved.awk README.md | diff - examples/pictures/reserved.svg; }
check "the picture of README.md's table (make pictures)" as_drawn

# ---- figures in tests/README.md, with FIGURES=1: what programs print, or have printed ----
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
    check "saboteurs" figure "149 ways" \
        "$(awk '/^} saboteurs/ || /saboteurs\[\] = \{/ { on = 1 } /^};/ { on = 0 }
                on && /^    [A-Z]+\("/ { n++ } END { print n }' tests/unit/test_sabotage*.c)"
fi

echo "$passed passed, $failed failed"
((failed == 0))
