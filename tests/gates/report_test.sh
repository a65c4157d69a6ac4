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

# ---- the example, with everything switched on ----
check "memory_map.c" build map "examples/memory_map.c"
example() {
    GPUPOOL_REPORT=$out/map.json GPUPOOL_TRACE_FILE=$out/map.trace "$out/map" "$out/map.svg" \
        > "$out/map.txt"
}
check "memory_map" example
is_xml() {
    python3 - "$1" << 'END_OF_PYTHON'
import sys
import xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
assert root.tag.endswith("svg")
assert len(root.findall(".//{*}title")) > 50
END_OF_PYTHON
}
check "the map is XML" is_xml "$out/map.svg"
snapshot() {
    python3 "examples/memory_viz.py" --line 1 "$out/map.json" "$out/map.pickle" &&
        python3 - "$out" << 'END_OF_PYTHON'
import json
import pickle
import sys
report = json.loads(open(sys.argv[1] + "/map.json").readline())
segments = pickle.load(open(sys.argv[1] + "/map.pickle", "rb"))["segments"]
assert sum(s["total_size"] for s in segments) == report["reserved"] > 0
assert sum(s["allocated_size"] for s in segments) == report["allocated"] > 0
for s in segments:
    assert sum(b["size"] for b in s["blocks"]) == s["total_size"]
    address = s["address"]
    for b in s["blocks"]:
        assert b["address"] == address
        address += b["size"]
names = {f["name"] for s in segments for b in s["blocks"] for f in b["frames"]}
assert "weights" in names, names
END_OF_PYTHON
}
check "PyTorch's snapshot" snapshot
adaptors() { # the words of gpupool_stats, in their order
    python3 - "$out" "examples" << 'END_OF_PYTHON'
import ast
import json
import sys
names = {}
for file in "pytorch_allocator", "cupy_allocator", "memory_viz":
    tree = ast.parse(open(f"{sys.argv[2]}/{file}.py").read())
    for line in tree.body:
        if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", "") == "WORDS":
            names = line.value.func.value.value.split()
report = json.loads(open(sys.argv[1] + "/map.json").readline())
assert [word for word in report if word in names] == names and len(names) == 24
assert names.index("reserved") == 4 and names.index("pending") == 6 and names.index("limit") == 12
END_OF_PYTHON
}
check "the adaptors in Python" adaptors
plays() { # each free and use names a block that is live, and at the end none is
    awk '$1 == "a" { if ($2 in live) exit bad = 1; live[$2] }
         $1 == "f" || $1 == "u" { if (!($2 in live)) exit bad = 1 }
         $1 == "f" { delete live[$2] }
         { kinds[$1]++ }
         END { for (id in live) bad = 1; exit bad || kinds["a"] != 48 || kinds["o"] != 1 }' "$1"
}
check "the trace plays" plays "$out/map.trace"
if [[ -x $BUILD/replay ]]; then
    check "build/replay" "$BUILD/replay" "$out/map.trace" > "$out/replay.txt"
fi

# ---- labels and names of random bytes ----
cat > "$out/labels.c" << 'END_OF_C'
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include <string.h>
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
int main(int count, char **words) {
    FILE *json = fopen(words[1], "w"), *said = fopen(words[2], "w");
    for (int round = 0; round < 2000; round++) {
        char name[80], label[200];
        gpupool_arena_config config = {0};
        gpupool_request request = {1000, 0, 0, 0, label};
        gpupool_arena *arena;
        void *block;
        fill(name, next() % 70);
        fill(label, next() % 190);
        config.name = name;
        config.limit_bytes = 2 << 20;
        if (count < 3 || gpupool_arena_create(&arena, &config) != GPUPOOL_OK) return 1;
        block = gpupool_alloc_request(arena, &request);
        if (!block || gpupool_alloc(arena, (2 << 20) - 512, 0)) return 1;
        fprintf(said, "%s\n", gpupool_last_error());
        if (gpupool_write_json(arena, json) != GPUPOOL_OK) return 1;
        if (gpupool_report(arena, said) != GPUPOOL_OK) return 1;
        gpupool_free(arena, block, 0);
        if (gpupool_arena_destroy(arena) != GPUPOOL_OK) return 1;
    }
    return fclose(json) || fclose(said);
}
END_OF_C
check "labels: build" build labels "$out/labels.c"
labels() {
    "$out/labels" "$out/labels.json" "$out/labels.txt" && python3 - "$out" << 'END_OF_PYTHON'
import json
import sys
data = open(sys.argv[1] + "/labels.json", "rb").read()
lines = data.decode("utf-8").split("\n")
assert len(lines) == 2001 and not lines[-1]
for line in lines[:-1]:
    report = json.loads(line)
    assert report["gpupool"] == 3 and report["blocks"] == 1
    assert any("label" in part for chunk in report["memory"] for part in chunk["parts"])
text = open(sys.argv[1] + "/labels.txt", "rb").read().decode("utf-8")
controls = {c for c in text if (c < " " or "\x7f" <= c < "\xa0") and c != "\n"}
assert not controls, controls
lines = text.split("\n")
assert len(lines) % 2000 == 1, len(lines)
END_OF_PYTHON
}
check "labels: JSON and text" labels

echo "$passed passed, $failed failed"
((failed == 0))
