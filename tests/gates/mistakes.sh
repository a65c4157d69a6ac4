#!/bin/bash
# Plants each mistake of mistakes.txt in a copy of the header, one at a time: its test must fail, or
# not end. Without a mistake every one of these tests must pass. JOBS at a time; ONLY= how names
# begin. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
export CC=${CC:-gcc} BUILD=${BUILD:-build}
export out=$BUILD/mistakes cuda=-Itests/fakecuda/include
[[ -z ${TOOLKIT:-} ]] || cuda="-isystem $TOOLKIT/include"
rm -rf "$out"
mkdir -p "$out"

compile() { # OBJECT SOURCE FLAGS...
    $CC -std=gnu11 -w -pthread $cuda "${@:3}" -I. -Itests -Itests/support -Itests/fakecuda \
        -Itests/world -c -o "$1" "$2"
}
prepare() { # TEST: its objects, without the implementation
    local source sources=
    case $1 in
    world_*) sources="model blocks graphs arena intrude world ${1#world_}" ;;
    *) compile "$out/$1.o" "tests/api/$1.c" -O0 -DLINKED=1 ;;
    esac
    for source in $sources; do
        compile "$out/$1.$source.o" "tests/world/$source.c" -O0 || return 1
    done
}
build() { # TEST FOLDER: the program, of the header in the folder
    local source=tests/support/linked.c flags=-O0
    case $1 in
    world_*) source=tests/world/library.c ;;
    test_stream_check) flags+=" -DGPUPOOL_STREAM_CHECK=1" ;;
    esac
    compile "$2/library.o" $source "-I$2" $flags && $CC -pthread -o "$2/test" "$out/$1".*o \
        "$2/library.o" "$BUILD/fakecuda/none.a" -lm -ldl
}
run() ( # TEST FOLDER SCENE: or a world's first seed; "" is for a short run without a mistake
    limit=10
    [[ $1 != world_seeds && $3 ]] || limit=60
    [[ $1 == world_* || ! $3 ]] || export CHECK_ONLY=$3
    if [[ $1 == world_* ]]; then seeds="${3:-1} $((${3:-1} + (${#3} ? 300 : 2)))"; fi
    timeout $limit "$2/test" ${seeds:-} > "$2/log" 2>&1
)
none() { # TEST: passes without a mistake
    local folder=$out/none-$1
    mkdir -p "$folder"
    cp gpupool.h "$folder"
    if build "$1" "$folder" && run "$1" "$folder" ""; then echo "ok without a mistake: $1"
    else echo "FAILED without a mistake: $1"; tail -n 3 "$folder/log"; fi
}
plant() { # NUMBER: the mistake of that line
    local name test function edit scene folder changed
    read -r name test function edit < <(sed -n "$1p" "$out/table")
    scene=${test#*:} test=${test%:*}
    folder=$out/$name
    mkdir -p "$folder"
    sed "/^[a-zA-Z].*\\<$function(/,/^}/$edit" gpupool.h > "$folder/gpupool.h"
    changed=$(diff gpupool.h "$folder/gpupool.h" | grep -c '^<')
    if [[ $changed != [12] ]]; then echo "FAILED $name: the edit changes $changed lines"
    elif ! build "$test" "$folder"; then echo "FAILED $name: it does not compile"
    elif run "$test" "$folder" "$scene"; then echo "FAILED $name: $test does not see it"
    elif [[ $test == world_seeds ]] && ! grep -q '^repeat' "$folder/log"; then
        echo "FAILED $name: $test has not seen it in time" # or what a busy machine does would count
    else
        echo "ok $name: $(grep -m 1 -E '^FAILED|^repeat' "$folder/log" || echo "it did not end")"
    fi
    rm -rf "$folder"
}
export -f compile prepare build run none plant
at_once() { xargs -P "${JOBS:-2}" -I{} bash -c "$1"; } # COMMAND, for each word

sed 's/^#.*//; /^$/d' tests/gates/mistakes.txt | grep -E "^${ONLY:-}" > "$out/table"
tests=$(awk '{ sub(":.*", "", $2); print $2 }' "$out/table" | sort -u)
echo "$tests" | at_once 'prepare {}' || exit 1
{
    echo "$tests" | at_once 'none {}'
    seq "$(wc -l < "$out/table")" | at_once 'plant {}'
} | tee "$out/said"
passed=$(grep -c '^ok' "$out/said") failed=$(grep -c '^FAILED' "$out/said")
echo "$passed passed, $failed failed"
((failed == 0 && passed > 1))
