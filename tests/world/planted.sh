#!/bin/bash
# Plants one wrong edit at a time in a copy of the third edition, at a rule of order, and shows that
# the world finds it within 500 seeds, or a contract test does. Each edit must change exactly one
# line.  planted.sh [NAME]
set -u
out=${BUILD:-build}/world_planted
header=tests/next/gpupool.h
mkdir -p "$out"
only=${1:-}
passed=0 failed=0
compile() { # FILE FLAGS...
    ${CC:-gcc} -std=gnu11 -O1 -w -pthread -isystem "${TOOLKIT:-/usr/local/cuda}/include" \
        -Itests/fakecuda -Itests/world -c -o "$out/$(basename "$1" .c).o" "$@"
}
for f in tests/world/{model,blocks,graphs,arena,intrude,world,driver,seeds,threads,clock}.c; do
    compile "$f" || exit 1
done

world_with() { # DRIVER: the world with the header that was edited
    compile tests/world/next.c -DWORLD_HEADER="\"$PWD/$out/gpupool.h\"" &&
        ${CC:-gcc} -pthread -o "$out/world" \
            "$out"/{model,blocks,graphs,arena,intrude,world,driver,next}.o \
            "$out/$1.o" "${FAKE:-build/fakecuda/none.a}" -lm -ldl
}
test_with() { # TEST: likewise, a test of tests/next/api
    compile "tests/next/api/$1.c" -DGPUPOOL_NEXT=1 -DGPUPOOL_IMPLEMENTATION "-I$out" \
        -Itests/next -I. -Itests -Itests/support &&
        ${CC:-gcc} -pthread -o "$out/world" "$out/$1.o" "${FAKE:-build/fakecuda/none.a}" -lm -ldl
}

# NAME DRIVER FUNCTION TEXT INSTEAD: in this function, the text (a sed pattern) is replaced.
plant() {
    local changed seen result expected
    [ -z "$only" ] || [ "$only" = "$1" ] || return
    sed "/^[a-zA-Z].*\\<$3(/,/^}/s/$4/$5/" $header > "$out/gpupool.h"
    changed=$(diff $header "$out/gpupool.h" | grep -c '^<')
    if [ "$changed" != 1 ] && [ "$1" != none ]; then
        echo "$1: the edit changes $changed lines"; failed=$((failed + 1)); return
    fi
    case $2 in
    test_*) test_with "$2" || exit 1 ;;
    *) world_with "$2" || exit 1 ;;
    esac
    seen=none
    timeout 120 "$out/world" 1 "${seeds:-500}" > "$out/log" 2>&1 ||
        seen=$(grep -m1 '^repeat\|^FAILED' "$out/log" || echo 'it crashed or stood still')
    if [ "$1" = none ]; then expected=none; else expected=seen; fi
    if [ "$seen" = none ]; then result=none; else result=seen; fi
    if [ $result = $expected ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    echo "$1: $seen"
}

seeds=20 plant none seeds none none none
plant O1-noted-after seeds gpi_stream_mark 's->mark_at = gpi_max(s->mark_at, at)' \
    's->mark_at = s->issued'
plant O1-passes-what-is-issued seeds gpi_stream_poll 's, s->mark_at' 's, s->issued'
plant O1-device-wait-passes-later seeds gpi_ladder_wait 's, at);' 's, streams->position);'
plant O2-asked-once seeds gpi_driver_mark 'stream)) {' 'stream) \&\& 0) {'
plant O3-no-wait seeds gpi_hand_follow 'result = gpi_stream_follow(.*);' 'result = GPUPOOL_OK;'
plant O3-waits-forgotten seeds gpi_ladder_adopt_waiting \
    'if (gpi_stream_follow(.*) == GPUPOOL_OK) continue' 'continue'
plant O4-use-forgotten seeds gpi_alloc_record 'gpi_stream_add_use(.*, user, \(.*\));' '\1;'
plant O4-use-too-early seeds gpi_alloc_record 'gpi_stream_issue(arena, user)' 'user->issued'
plant O5-host-memory-at-once seeds gpi_alloc_ask ' && !(flags & GPI_HOST)' ''
plant O6-one-default-stream threads gpi_stream_key 'gpi_thread.number \* 2' '2 * 2'
plant O7-free-into-the-cache seeds gpi_free_cached '!s->scope && ' ''
plant O8-nobody-is-waited-for test_sleep_threads gpi_sleep_quiet 'while (arena->outside)' \
    'while (0)'
plant O8-requests-do-not-ask test_sleep gpi_arena_ready 'arena->sleep == GPI_AWAKE' '1'
plant O11-a-stream-breaks-all seeds gpi_stream_mark \
    'if (result != GPUPOOL_OK) return result' \
    'if (result != GPUPOOL_OK) return gpi_arena_break(arena)'
plant O12-one-device-alone test_peers gpi_driver_wait 'i < GPI_READ(&driver->peer_count)' 'i < 0'
plant O12-peers-without-access test_peers gpi_driver_access '(size_t)driver->peer_count + 1' '1'
plant O13-not-their-affair test_siblings gpi_sibling_helps 'need <= room' '1'
plant O14-mail-without-attention seeds gpupool_free_in_host_function \
    'GPI_PUBLISH(&arena->attention, 1)' '(void)0'
plant O15-peek-believed seeds gpi_free_cached '!run->is_cached && ' ''
plant O16-unmapped-while-in-use seeds gpi_chunk_is_idle 'run->list == &arena->buddy.any &&' ''
plant O16-a-graphs-stitch-forgotten test_sleep gpi_sleep_get_stitches \
    ' \&\& gpi_stitch_has_passed(arena, stitch)' ''
plant lock-held-while-recording clock gpi_stream_mark 'gpi_arena_open(arena)' 'arena->outside++'
plant release-without-a-wait seeds gpupool_release_capture 'gpi_ladder_wait(.*)' 'GPUPOOL_OK'
echo "$passed passed, $failed failed"
[ $failed = 0 ]
