#!/bin/bash
# Builds the test programs with gcov's counters, runs them, and adds up over all of them what no
# test of gpupool.h executes: coverage.sh BUILD JOBS INCLUDES
#
# Each source is built once for every set of -D flags in its `// build:` lines. Asserts are left out
# (GPUPOOL_CHECK 0): they are to have one outcome. What they call is gpupool_check's, and counted.
# Nothing is inlined, or its branches would be counted at every call apart.
set -u
build=$1/coverage jobs=$2 includes=$3
export build includes CC="${CC:-gcc}" fake=$1/fakecuda/none.a

# Long runs that add nothing here, and one that waits for asserts to fail.
left_out='test_churn test_counted test_fuzz test_races test_schedules test_schedules_mapped
          test_schedules_ring test_soak test_threads16 test_tree_long test_tree_misuse'
# NAME:FLAGS of builds that take long. Other builds of the program, with smaller bounds or without
# the flags, run and do the same.
long='test_tree: test_sabotage: test_tag_sleep:-DGPUPOOL_GUARD=1 test_tag_sleep:-DGPUPOOL_SITES=1'

sources() { # NAME SOURCE FLAGS, a program a line
    for source in tests/unit/test_*.c tests/api/test_*.c; do
        name=$(basename "$source" .c)
        grep -qw "$name" <<< "$left_out" && continue
        { sed -n 's,^// build: *[^ ]*,,p' "$source"; grep -q '^// build: ' "$source" || echo; } |
            while read -r flags; do
                # level 3 has guards, and asserts are left out at every level
                defines=$(printf '%s\n' $flags | sed 's/GPUPOOL_CHECK=3/GPUPOOL_GUARD=1/' |
                          grep '^-D' | grep -v GPUPOOL_CHECK= | sort -u | tr '\n' ' ')
                [[ " $long " == *" $name:${defines% } "* ]] && continue
                echo "$name$(tr -c 'A-Za-z0-9\n' _ <<< "${defines//-D/ }") $source $defines"
            done | sort -u
    done
}

compile() { # FOLDER SOURCE FLAGS: leaves FOLDER/test.o, and FOLDER/test.gcda when that runs
    mkdir -p "$1"
    $CC -std=c11 -O0 --coverage -fprofile-update=atomic -pthread -w \
        -D_exit=coverage_exit -Dalways_inline= -DGPUPOOL_CHECK=0 ${@:3} $includes \
        -c -o "$1/test.o" "$2"
}

linked() { # FLAGS: the folder of the implementation for tests of tests/api, compiled once
    echo "$build/linked$(printf '%s\n' "$@" | grep -e -DGPUPOOL_ -e -DCUDA_API_ | tr -dc 'A-Z0-9_')"
}

one() { # NAME SOURCE FLAGS
    dir=$build/$1
    if [[ $2 == tests/api/* ]]; then implementation=$(linked "${@:3}")/test.o
    else implementation=; fi
    compile "$dir" "$2" ${implementation:+-DLINKED=1} "${@:3}" &&
        $CC --coverage -pthread -o "$dir/test" "$dir/test.o" $implementation "$build/exit.o" \
            "$fake" -lm -ldl &&
        timeout -k 5 "${TEST_LIMIT_S:-300}" "$dir/test" > "$dir/out" 2>&1 && return
    echo "coverage: $1 has failed:"
    tail -n 5 "$dir/out" 2> /dev/null
    touch "$build/failed"
}
export -f one compile linked

rm -rf "$build"
mkdir -p "$build"
$CC -c -o "$build/exit.o" tests/gates/coverage_exit.c || exit 1
sources > "$build/programs"
grep ' tests/api/' "$build/programs" | while read -r _ _ flags; do
    [[ -e $(linked $flags)/test.o ]] ||
        compile "$(linked $flags)" tests/support/linked.c $flags || touch "$build/failed"
done
xargs -P "$jobs" -d '\n' -I{} bash -c 'one {}' < "$build/programs"
python3 tests/gates/coverage.py gpupool.h "$build"/*/test.gcda || exit 1
[[ ! -e $build/failed ]]
