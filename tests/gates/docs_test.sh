#!/bin/bash
# What the top comment of gpupool.h, README.md and the other pages say: programs and recipes that
# readers paste compile and run; options, names, targets, files, sections and pictures are there.
# Says `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CC=${CC:-gcc} CXX=${CXX:-g++} BUILD=${BUILD:-build} TOOLKIT=${TOOLKIT:-}
out=$BUILD/docs
rm -rf "$out"
mkdir -p "$out"
cuda=-Itests/fakecuda/include
[[ -z $TOOLKIT ]] || cuda="-isystem $TOOLKIT/include"
. tests/gates/checks.sh
pages="README.md examples/README.md tests/README.md tests/fakecuda/README.md"

# ---- programs and recipes ----
# README.md's first programs in C and in C++ are the header's, but for comments: in the header they
# have // comments, since */ would end its top comment. The other code blocks are recipes, which
# tests/gates/compile/recipes.h makes programs of.
header_program() { # HEADING: the indented lines below it
    awk -v heading="$1" 'index($0, heading) == 1 { on = 1; next } on && /^[^ ]/ { exit }
                         on { sub("^    ", ""); print }' gpupool.h
}
header_program "A complete program:" > "$out/header.c"
header_program "The same in C++" > "$out/header.cpp"
awk -v out="$out" '/^```(c|cpp|python|text)$/ { on = substr($0, 4); n[on]++; next }
                   /^```/ { on = "" }
                   on { print > (out "/readme" n[on] "." on) }' README.md
without_comments() { sed -E 's, *(//.*|/\*.*\*/),,' "$1" | grep .; }
same_program() { # KIND
    [[ -s $out/header.$1 ]] &&
        diff <(without_comments "$out/header.$1") <(without_comments "$out/readme1.$1")
}
runs() { # COMPILER FILE
    $1 -Wall -Wextra -Werror -I. $cuda -o "$2.program" "$2" "$BUILD/fakecuda/none.a" -pthread -lm \
        && "$2.program"
}
says_so() { # README.md's text: how the first program's report begins
    [[ -s $out/readme1.text ]] && "$out/readme1.c.program" |
        head -n "$(wc -l < "$out/readme1.text")" | diff "$out/readme1.text" -
}
check "README.md's program in C is the header's" same_program c
check "README.md's program in C runs" runs "$CC -std=c11" "$out/readme1.c"
check "what README.md's first program prints" says_so
check "README.md's program in C++ is the header's" same_program cpp
! works "$CXX" ||
    check "README.md's program in C++ runs" runs "$CXX -std=c++11" "$out/readme1.cpp"

recipe() { # FILE: its lines as a function's body
    awk 'BEGIN { print "#include \"tests/gates/compile/recipes.h\"" }
         BEGIN { print "static void recipe(GIVEN) {" } { print } END { print "}" }' "$1"
}
recipe_runs() { # FILE.c or FILE.cpp, FLAGS
    local source=${1%.*}_run.${1##*.} compiler="$CC -std=gnu11"
    [[ $1 == *.c ]] || compiler="$CXX -std=c++11"
    recipe "$1" > "$source"
    runs "$compiler ${2:-} -D_GNU_SOURCE -Wno-unused -Wno-unused-parameter" "$source"
}
recipes=0
for program in "$out"/readme[2-9].c "$out"/readme[2-9].cpp; do
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
    "$1" | sort -u > "$out/one"
    "$2" | sort -u > "$out/other"
    [[ -s $out/one ]] && diff "$out/one" "$out/other"
}
options_of_code() { # what the header leaves alone where it is defined, and what it only looks at
    awk '/^#ifndef GPUPOOL_[A-Z]/ && $2 !~ /_(H|NAMED)$/ { print $2 }
         /^#if(def)? .*GPUPOOL_[A-Z_]+/ {
             while (match($0, /GPUPOOL_(IMPLEMENTATION|REPLACE_CUDA_MALLOC|SITES|CHECK)/)) {
                 print substr($0, RSTART, RLENGTH)
                 $0 = substr($0, RSTART + RLENGTH)
             }
         }' gpupool.h
    echo GPUPOOL_FREE # beside GPUPOOL_MALLOC
}
options_of_top() {
    awk '/^Options, macros/ { on = 1; next } /^    environment/ || /^$/ { on = 0 } on' gpupool.h |
        grep -oE 'GPUPOOL_[A-Z_]+'
}
check "the options in the top comment are the code's" same options_of_code options_of_top
sections_of_code() { grep -oE '^/\* == [A-Z]+' gpupool.h | sed 's/.* //'; }
sections_of_top() {
    awk '/^Contents/ { on = 1; next } /^[^ ]/ { on = 0 } on' gpupool.h |
        sed 's/^    \(.\{29\}\).*/\1/' | grep -oE '[A-Z]+'
}
check "the contents are the sections" same sections_of_code sections_of_top

# ---- names: what is written of is there, and what is there is written of ----
names() { grep -ohE '\b(gpupool|GPUPOOL)_[A-Za-z_]*[A-Za-z]\b' "$@" | sort -u; }
every_name_exists() {
    local unknown
    cat gpupool.h > "$out/code.c"
    $CC -fpreprocessed -dD -E -P -w "$out/code.c" > "$out/code" # without comments
    # LIMIT_0 and the like are names in the environment.
    unknown=$(names $pages gpupool.h | comm -23 - <(names "$out/code" examples/*.h examples/*.cpp))
    [[ -z $unknown ]] || { echo "no such name: $unknown"; return 1; }
}
check "names in $pages and the header's comments" every_name_exists
# In its paragraph, or in that of its section just above.
every_call_is_documented() {
    awk '/^\/\* == API/ { on = 1 } /^#if defined\(GPUPOOL_SITES/ { exit } on' gpupool.h |
        awk 'BEGIN { RS = "" } { calls = $0 ~ /GPUPOOL_API/ }
             calls && !/\/\*/ && !section { print "no comment: " $0; bad = 1 }
             { section = 1; seen += calls } END { exit bad || seen < 20 }'
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
examples_there() { ls examples | grep -vE '^(README.md|run_examples.sh|pictures|__pycache__)$'; }
examples_in_table() {
    grep -oE '`[a-z_]+\.(cu|cpp|c|h|py)`' examples/README.md | tr -d '`'
}
check "the examples in examples/README.md" same examples_there examples_in_table
fits() { # README.md: a page that is read
    awk '/^```/ { code = !code }
         length > 120 && !/^\|/ && !code { print "too long: " $0; bad = 1 }
         END { print NR " lines"; exit bad || NR > 250 }' README.md
}
check "README.md has 250 lines of 120 columns" fits
filled() { ! grep -n '@@' README.md; }
check "README.md has all its figures" filled
picture() { # FILE.svg: in README.md, and small
    grep -qF "($1)" README.md && grep -q '^</svg>$' "$1" && (($(wc -c < "$1") < 200000))
}
for file in examples/pictures/*.svg; do check "picture: $file" picture "$file"; done
as_drawn() { awk -f tests/bench/reserved.awk README.md | diff - examples/pictures/reserved.svg; }
check "the picture of README.md's table (make pictures)" as_drawn

echo "$passed passed, $failed failed"
((failed == 0))
