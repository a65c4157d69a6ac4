/* fuzz_sleep_calls.h: gpupool_sleep and gpupool_wake, from the program and from its functions,
   which the arena calls when memory is short or a soft limit is passed. */
#ifndef FUZZ_SLEEP_CALLS_H
#define FUZZ_SLEEP_CALLS_H

#include "fuzz_sleep_model.h"

/* ---- sleep and wake ---- */

/* A sleep that fails counts all the same if the driver has mapped nothing again. The program's
   functions may be called before the end, and change what was done: what such a function has put
   to sleep, to keep it, was about to be discarded. */
static gpupool_result fuzz_sleep_now(int tag, int content, gpupool_ring *by) {
    int before = fs.called, discards = content == GPUPOOL_DISCARD, slept[TAGS];
    memcpy(slept, fs.asleep, sizeof slept);
    gpupool_result result = gpupool_sleep(arena, tag, (gpupool_content)content, by);
    if (result != GPUPOOL_OK && result != GPUPOOL_E_CUDA && fs.called == before) return result;
    for (int part = 0; part <= fs.tags && discards; part++)
        if (fuzz_is_in(part, tag) && (!slept[part] || fs.inside)) fuzz_lose(part);
    if (fs.called != before) fuzz_are_unsure(GPUPOOL_ALL);
    else if (result == GPUPOOL_OK) fuzz_are(tag, 1);
    else fuzz_are_unsure(tag);
    return result;
}

static gpupool_result fuzz_wake_now(int tag, gpupool_ring *by) {
    int before = fs.called;
    gpupool_result result = gpupool_wake(arena, tag, by);
    if (fs.called != before) fuzz_are_unsure(GPUPOOL_ALL);
    else if (result == GPUPOOL_OK) fuzz_are(tag, 0);
    return result;
}

/* 0: it may go well; else the results one of which it must have, as bits. */
static unsigned fuzz_sleep_refused(int tag, int content) {
    if (!fuzz_may_sleep(tag) || (content != GPUPOOL_KEEP && content != GPUPOOL_DISCARD))
        return 1u << GPUPOOL_E_ARGUMENT;
    if (fs.graph.capturing) return 1u << GPUPOOL_E_CAPTURING;
    return fuzz_parts(tag, 0) ? 0 : 1u << GPUPOOL_E_ASLEEP;
}

/* What may stand in the way of one that is not refused. */
static unsigned fuzz_sleep_fails(int content) {
    unsigned scope = fs.graph.scope && !fs.is_sound ? 1u << GPUPOOL_E_CAPTURING : 0u;
    return scope | (content == GPUPOOL_KEEP && fs.backup_bytes ? 1u << GPUPOOL_E_HOST_MEMORY : 0u);
}

static unsigned fuzz_wake_fails(void) {
    return (fs.is_tight ? FUZZ_NO_MEMORY : 0u) | (fs.is_told ? 1u << GPUPOOL_E_CALLBACK : 0u);
}

static int fuzz_some_tag(uint8_t byte) {
    static const int tags[] = {GPUPOOL_ALL, 1, 2, 3, GPUPOOL_ALL, 1, 2, 3, 1, 2, 3, 0, TAGS, -2};
    return tags[byte % KIT_COUNT(tags)];
}

static void fuzz_sleep_tag(fuzz_step s) {
    int tag = fuzz_some_tag(s.a), content = s.b == 255 ? 7 : s.b & 1;
    gpupool_ring *by = s.b & 2 ? ring : NULL;
    unsigned refused_as = fuzz_sleep_refused(tag, content);
    if (FUZZ_TRY(fuzz_sleep_now(tag, content, by), refused_as ? refused_as
                                                              : fuzz_sleep_fails(content)))
        CHECK(!refused_as);
}

static void fuzz_wake_tag(fuzz_step s) {
    int tag = fuzz_some_tag(s.a), is_there = fuzz_may_sleep(tag) && fuzz_parts(tag, 1);
    gpupool_ring *by = s.b & 2 ? ring : NULL;
    if (FUZZ_TRY(fuzz_wake_now(tag, by),
                 is_there ? fuzz_wake_fails() : 1u << GPUPOOL_E_ARGUMENT))
        CHECK(is_there);
}

/* ---- the program's functions ---- */

/* Called in there, it may be refused for what the call around it has done, or by a fault. */
static void fuzz_inside(gpupool_result result, unsigned allowed) {
    if (result == GPUPOOL_OK || allowed >> result & 1) return;
    if (!CHECK(fake_fail_fired() + fail_malloc_fired > 0)) printf("%s\n", gpupool_last_error());
}

#define FUZZ_REFUSED (1u << GPUPOOL_E_ARGUMENT | 1u << GPUPOOL_E_CAPTURING | 1u << GPUPOOL_E_ASLEEP)

static int fuzz_called(void) {
    fuzz_step s = fs.callback;
    int tag = fuzz_some_tag(s.b), i = s.c / TAGS % TAG_SLOTS, of = s.c % (fs.tags + 1);
    fs.callback.verb = 0;
    if (s.verb == 0) return 0;
    fs.inside = 1;
    if (s.a & 1) {
        fuzz_inside(fuzz_sleep_now(tag, s.c & 1, NULL), FUZZ_REFUSED | fuzz_sleep_fails(s.c & 1));
        fs.called++;
    } else if (s.a & 2) {
        fuzz_inside(fuzz_wake_now(tag, NULL), FUZZ_REFUSED | fuzz_wake_fails());
        fs.called++;
    } else if (fuzz_slot(of, i)) {
        gpupool_result result = gpupool_free(arena, slot[of][i].at, slot_stream(i));
        fuzz_inside(result, 0);
        if (result == GPUPOOL_OK) slot[of][i].at = NULL;
    }
    fs.inside = 0;
    return 1;
}

static int fuzz_out_of_memory(const gpupool_verdict *verdict, void *user) {
    (void)user;
    CHECK(verdict->cause != GPUPOOL_CAUSE_NONE);
    return fuzz_called();
}

static void fuzz_over_the_limit(const gpupool_soft_limit *what, void *user) {
    (void)user;
    CHECK(what->arena == arena);
    fuzz_called();
}

#endif
