/* soak_sleep.h: tags of test_soak.c, and all of an arena, that sleep and wake. Others work beside a
   tag that falls asleep, and while it sleeps; all of an arena sleeps and wakes in one action. */
#ifndef SOAK_SLEEP_H
#define SOAK_SLEEP_H

#include "soak_graphs.h"

static atomic_long soak_sleeps, soak_wakes;

/* Any content may be dropped but that of graphs, which read it again at each launch. It is kept
   less often, since that takes long. */
static inline gpupool_content some_content(actor *a, const world *w) {
    return has_graphs(w) || below(a, 4) == 0 ? GPUPOOL_KEEP : GPUPOOL_DISCARD;
}

/* By a ring or without. */
static inline gpupool_result sleep_in_a_way(actor *a, const world *w, int tag,
                                            gpupool_content content) {
    gpupool_ring *ring = below(a, 2) ? w->ring : NULL;
    gpupool_result result;
    device_goes_on();
    result = gpupool_sleep(w->arena, tag, content, ring);
    device_waits();
    return result;
}

static inline gpupool_result wake_by(actor *a, const world *w, int tag) {
    gpupool_ring *ring = below(a, 2) ? w->ring : NULL;
    gpupool_result result;
    device_goes_on();
    result = gpupool_wake(w->arena, tag, ring);
    device_waits();
    return result;
}

/* While a stream captures nothing falls asleep; so captures end first, more often than not. */
static inline void end_captures(actor *a) {
    for (int i = 0; i < WORLDS && below(a, 4); i++) finish_graphs(a, &soak_world[i]);
}

static inline int may_not_sleep(void) { return soak_world[0].taken || soak_world[1].taken; }

/* By what a request says: after a call that failed. */
static inline int says_it_sleeps(actor *a, world *w, int tag) {
    cudaStream_t stream = enter(a, w, 0);
    gpupool_request request = kit_request(1, stream, 0);
    gpupool_result got = GPUPOOL_E_CUDA;
    request.tag = tag;
    while ((got == GPUPOOL_E_CUDA || got == GPUPOOL_E_HOST_MEMORY) && !atomic_load(&check_bad)) {
        void *at;
        calm();
        soak_before(a);
        at = gpupool_alloc_request(w->arena, &request);
        got = kit_why(at);
        soak_seen(a, got, "a request of one byte");
        while (at && !CALL(a, 0, gpupool_free(w->arena, at, stream)) && !atomic_load(&check_bad)) {}
    }
    leave(w, 0);
    return got == GPUPOOL_E_ASLEEP;
}

/* Whether it sleeps now. If the driver neither unmaps all nor maps it again, the call fails, and it
   does. While a stream captured when a call last named it, the call is refused. */
static inline int falls_asleep(actor *a, world *w, int tag, gpupool_content content) {
    gpupool_result got;
    soak_before(a);
    got = sleep_in_a_way(a, w, tag, content);
    if (got == GPUPOOL_E_CAPTURING && soak_alone) {
        soak_seen(a, got, "gpupool_sleep");
        return 0;
    }
    return soak_after(a, got, 0, "gpupool_sleep") ||
           says_it_sleeps(a, w, tag == GPUPOOL_ALL ? 0 : tag);
}

/* ---- a tag ---- */

/* Some are freed while they sleep. */
static inline void free_asleep(actor *a, world *w, int tag) {
    for (int i = 0; i < 8; i++) {
        block *b = &w->block[below(a, BLOCKS)];
        if (pthread_mutex_trylock(&b->lock) != 0) continue;
        if (b->at && b->tag == tag && !is_of_a_graph(w, b) && !b->graph) {
            cudaStream_t stream = enter_after(a, w, b, b->place);
            if (CALL(a, 0, gpupool_free(w->arena, b->at, stream))) {
                b->at = NULL;
                b->lent = 0;
            }
            leave(w, b->place);
        }
        pthread_mutex_unlock(&b->lock);
    }
}

static inline void fall_asleep(actor *a, world *w, int tag) {
    soak_tag *t = &w->tag[tag];
    gpupool_content content = some_content(a, w);
    t->asleep = falls_asleep(a, w, tag, content);
    t->discards += t->asleep && content == GPUPOOL_DISCARD;
    atomic_fetch_add(&soak_sleeps, t->asleep);
    if (t->asleep) free_asleep(a, w, tag);
}

/* For this reason; or, before it is asked whether it sleeps already, since a stream captured when a
   call last named it. */
static inline void will_not_sleep(actor *a, world *w, int tag, gpupool_result why) {
    gpupool_result got;
    soak_before(a);
    got = gpupool_sleep(w->arena, tag, GPUPOOL_KEEP, NULL);
    if (got != GPUPOOL_E_CAPTURING || why != GPUPOOL_E_ASLEEP || !soak_alone) {
        soak_refused(a, got, why, "gpupool_sleep");
        return;
    }
    soak_seen(a, got, "gpupool_sleep");
    CHECK(says_it_sleeps(a, w, tag));
}

static inline void act_sleep(actor *a, world *w) {
    int tag = 1 + (int)below(a, SOAK_TAGS);
    soak_tag *t = &w->tag[tag];
    end_captures(a);
    gpupool_result why = w->source != GPUPOOL_SOURCE_MAPPED ? GPUPOOL_E_UNSUPPORTED :
                         !t->can_sleep                      ? GPUPOOL_E_ARGUMENT :
                         may_not_sleep()                    ? GPUPOOL_E_CAPTURING :
                                                              GPUPOOL_E_ASLEEP;
    be_on(a, w->device);
    pthread_rwlock_wrlock(&t->lock);
    if (t->can_sleep && !may_not_sleep() && !t->asleep) fall_asleep(a, w, tag);
    else will_not_sleep(a, w, tag, why);
    pthread_rwlock_unlock(&t->lock);
}

/* There may be too little memory: it sleeps on. */
static inline void act_wake(actor *a, world *w) {
    int tag = 1 + (int)below(a, SOAK_TAGS);
    soak_tag *t = &w->tag[tag];
    be_on(a, w->device);
    pthread_rwlock_wrlock(&t->lock);
    if (!t->asleep)
        REFUSED(a, w->source == GPUPOOL_SOURCE_MAPPED ? GPUPOOL_E_ARGUMENT : GPUPOOL_E_UNSUPPORTED,
                gpupool_wake(w->arena, tag, NULL));
    else if (CALL(a, 1, wake_by(a, w, tag))) t->asleep = 0;
    atomic_fetch_add(&soak_wakes, t->can_sleep && !t->asleep);
    pthread_rwlock_unlock(&t->lock);
}

static inline void act_budget(actor *a, world *w) {
    size_t bytes = below(a, 2) ? (size_t)below(a, 64) * MIB : 0;
    CALL(a, 0, gpupool_set_tag_limits(w->arena, 1 + (int)below(a, SOAK_TAGS), bytes, bytes / 2));
}

/* ---- all of an arena: nobody else uses it meanwhile ---- */

static inline int wake_tags(actor *a, world *w) {
    if (!CALL(a, 1, wake_by(a, w, GPUPOOL_ALL))) return 0;
    for (int tag = 1; tag <= SOAK_TAGS; tag++) w->tag[tag].asleep = 0;
    return 1;
}

/* All of it was awake at once, so there is room when nothing else stands in the way. */
static inline void wake_all(actor *a, world *w) {
    while (!wake_tags(a, w) && !atomic_load(&check_bad)) {
        calm();
        fake_other_process(w->device, 0);
        CALL(a, 0, gpupool_set_limit(w->arena, 0));
    }
}

static inline void sleep_all(actor *a, world *w) {
    gpupool_content content = some_content(a, w);
    if (!falls_asleep(a, w, GPUPOOL_ALL, content)) return;
    for (int tag = 0; tag <= SOAK_TAGS; tag++) w->tag[tag].discards += content == GPUPOOL_DISCARD;
    REFUSED(a, GPUPOOL_E_ASLEEP, gpupool_trim(w->arena, 0, NULL));
    REFUSED(a, GPUPOOL_E_ASLEEP, kit_why(gpupool_alloc(w->arena, 1, w->place[1].stream)));
    CALL(a, 0, gpupool_check(w->arena));
    wake_all(a, w);
}

static inline void act_sleep_all(actor *a, world *w) {
    int is_mapped = w->source == GPUPOOL_SOURCE_MAPPED;
    end_captures(a);
    be_on(a, w->device);
    if (!is_mapped || may_not_sleep())
        REFUSED(a, is_mapped ? GPUPOOL_E_CAPTURING : GPUPOOL_E_UNSUPPORTED,
                gpupool_sleep(w->arena, GPUPOOL_ALL, GPUPOOL_KEEP, NULL));
    else if (!any_asleep(w) || wake_tags(a, w)) sleep_all(a, w);
}

#endif
