#!/bin/sh
# Plants one wrong edit at a time in a copy of the prototype (PROTOTYPE: the folder of its core.h),
# and shows that the world finds it in at most 60 seeds.
set -eu
out=${BUILD:-build}/world_planted
mkdir -p "$out"
flags="-std=gnu11 -O1 -w -pthread -isystem ${CUDA_HOME:-/usr/local/cuda}/include -Itests/fakecuda"
for f in tests/fakecuda/fk_*.c; do gcc $flags -c -o "$out/$(basename "$f" .c).o" "$f"; done
missed=0
plant() { # name, sed expression
    sed "$2" "$PROTOTYPE/core.h" > "$out/core.h"
    if [ "$1" != none ] && cmp -s "$out/core.h" "$PROTOTYPE/core.h"; then
        echo "$1: the edit changes nothing"; missed=1; return
    fi
    gcc $flags -I"$out" -DWORLD_ADAPTER='"world_prototype.h"' -o "$out/world" tests/world/world.c \
        "$out"/fk_*.o -lm -ldl
    if "$out/world" 1 60 4000 > "$out/log" 2>&1; then found=0; else found=1; fi
    expected=1; [ "$1" = none ] && expected=0
    [ $found = $expected ] || missed=1
    echo "$1: $([ $found = 1 ] && grep -m1 repeat "$out/log" || echo 'nothing found')"
}
plant none ''
plant O1-passed-from-issued 's/s->passed = s->mark_at;/s->passed = s->issued;/'
plant O1-mark-not-asked 's/if (arena->driver.event_query(s->event) == CUDA_SUCCESS)/if (1)/'
plant O3-no-wait-for-mark 's/if (s->mark_at <= gpi_done(arena, s)) return GPI_OK;/return GPI_OK;/'
plant O4-use-forgotten 's/gpi_add_use(arena, run, s, gpi_issue(arena, s));/gpi_issue(arena, s);/'
exit $missed
