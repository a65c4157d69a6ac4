# planted_kit.sh: wrong edits of the header, each of which one of a list of tests must notice: it
# fails, or does not end. Name the edits' folder in $out, the contract tests in $tests, and flags of
# the build in $options; then source this.
CC=${CC:-gcc} BUILD=${BUILD:-build} header=tests/next/gpupool.h
mkdir -p "$out"
cuda=-Itests/fakecuda/include
[[ -z ${TOOLKIT:-} ]] || cuda="-isystem $TOOLKIT/include"
flags="-std=gnu11 -O1 -w -pthread $options $cuda"
cat > "$out/library.c" << 'END'
#define LINKED_LIBRARY 1
#include "fail_malloc.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
END
for test in $tests; do
    $CC $flags -Itests/next -Itests -Itests/support -c -o "$out/$test.o" \
        tests/next/api/$test.c || exit 1
done


passed=0 failed=0
verdict() { # WORDS, and whether it is as it should be
    if [[ $2 = 1 ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    echo "$1"
}
noticed() { # prints the test that notices the edit in $out/gpupool.h
    $CC $flags -I"$out" -Itests/support -c -o "$out/library.o" "$out/library.c" || return
    for test in $tests; do
        $CC -pthread -o "$out/$test" "$out/$test.o" "$out/library.o" "$BUILD/fakecuda/none.a" \
            -lm -ldl
        timeout 20 "$out/$test" > "$out/log" 2>&1 || { echo "$test"; return; }
    done
}
plant() { # NAME SED
    sed "$2" $header > "$out/gpupool.h"
    if cmp -s $header "$out/gpupool.h"; then verdict "$1: the edit changes nothing" 0; return; fi
    local by
    by=$(noticed)
    verdict "$1: ${by:-NOT NOTICED}" $([[ $by ]] && echo 1 || echo 0)
}

cp $header "$out/gpupool.h"
by=$(noticed)
verdict "without an edit: ${by:-nothing found}" $([[ $by ]] && echo 0 || echo 1)

planted_end() {
    echo "$passed passed, $failed failed"
    [[ $failed = 0 ]]
}
