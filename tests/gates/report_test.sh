#!/bin/bash
# Reports read by others: JSON by Python, whatever is in labels; a map as XML; PyTorch's snapshot;
# and a trace that plays. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CC=${CC:-gcc} BUILD=${BUILD:-build}
out=$BUILD/report
rm -rf "$out"
mkdir -p "$out"
. tests/gates/checks.sh

build() { # NAME SOURCE
    $CC -std=c11 -Wall -Wextra -Werror -I. -Iexamples -Itests/fakecuda/include \
        -o "$out/$1" "$2" "$BUILD/fakecuda/none.a" -pthread
}
is_right() { python3 tests/gates/report_check.py "$1" "$out"; }

# ---- the example, with everything switched on ----
check "memory_map.c" build map "examples/memory_map.c"
example() {
    GPUPOOL_REPORT=$out/map.json GPUPOOL_TRACE_FILE=$out/map.trace "$out/map" "$out/map.svg" &&
        python3 "examples/memory_viz.py" "$out/map.json" "$out/map.pickle" 1
}
check "memory_map, memory_viz.py" example
check "the map is XML" is_right picture
check "PyTorch's snapshot" is_right snapshot
check "the adaptor in Python" is_right words
plays() { # each free and use names a block that is live, and at the end none is
    awk '$1 == "a" { if ($2 in live) exit bad = 1; live[$2] }
         $1 == "f" || $1 == "u" { if (!($2 in live)) exit bad = 1 }
         $1 == "f" { delete live[$2] }
         { kinds[$1]++ }
         END { for (id in live) bad = 1; exit bad || kinds["a"] != 48 || kinds["o"] != 1 }' "$1"
}
check "the trace plays" plays "$out/map.trace"

# ---- labels of random bytes ----
cat > "$out/labels.c" << 'END_OF_C'
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
static unsigned state = 12345;
static unsigned next(void) { return (state = state * 1103515245u + 12345u) >> 16; }
/* Random bytes, or mostly starts and middles of letters in UTF-8. */
static void fill(char *text, unsigned length) {
    static const char some[] = "\xc2\xc3\xe0\xe2\xed\xef\xf0\xf4\xf5\x80\x8f\x90\x9f\xa0\xbf"
                               "\"\\\n\r\t\x01\x7f";
    for (unsigned i = 0; i < length; i++) {
        text[i] = next() % 4 ? some[next() % (sizeof some - 1)] : (char)(next() & 255);
        if (!text[i]) text[i] = 'x';
    }
    text[length] = 0;
}
int main(void) {
    for (int round = 0; round < 2000; round++) {
        char label[200];
        gpupool_request request = {1000, 0, 0, 0, label};
        gpupool_arena *arena;
        fill(label, next() % 190);
        if (gpupool_arena_create(&arena, NULL) != GPUPOOL_OK) return 1;
        void *block = gpupool_alloc_request(arena, &request);
        if (!block || gpupool_write_json(arena, stdout) != GPUPOOL_OK) return 1;
        gpupool_free(arena, block, 0);
        if (gpupool_arena_destroy(arena) != GPUPOOL_OK) return 1;
    }
    return 0;
}
END_OF_C
check "labels: build" build labels "$out/labels.c"
labels() { "$out/labels" > "$out/labels.json" && is_right labels; }
check "labels" labels

echo "$passed passed, $failed failed"
((failed == 0))
