#!/bin/bash
# Programs that readers paste: the one in the header's door and every C block of README.md are taken
# out, compiled against the simulated GPU, and run. Says `N passed, N failed`.
set -u
out=${BUILD:-build}/docs
mkdir -p "$out"
cuda=-Itests/fakecuda/include
[[ -z ${TOOLKIT:-} ]] || cuda="-isystem $TOOLKIT/include"
passed=0 failed=0

try() { # FILE.c WHERE
    if ${CC:-gcc} -std=c99 -Wall -Wextra -Werror -I. $cuda -o "${1%.c}" "$1" \
        "${BUILD:-build}/fakecuda/none.a" -pthread && "${1%.c}" > "${1%.c}.out"; then
        passed=$((passed + 1))
    else
        echo "FAILED: the program in $2 does not compile, or fails: $1"
        failed=$((failed + 1))
    fi
}

# In the door, C++ comments stand for C ones, which would end the comment that it is in.
awk '/^A complete program:/ { on = 1; next } on && /^[^ ]/ { exit } on { sub("//.*", ""); print }' \
    gpupool.h > "$out/door.c"
try "$out/door.c" "the door of gpupool.h"

rm -f "$out"/readme*.c
awk -v out="$out" '/^```c$/ { n++; on = 1; next } /^```/ { on = 0 }
                   on { print > (out "/readme" n ".c") }' README.md
for program in "$out"/readme*.c; do try "$program" README.md; done

echo "$passed passed, $failed failed"
((failed == 0))
