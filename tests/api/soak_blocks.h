/* soak_blocks.h: what a thread of test_soak.c does with blocks. */
#ifndef SOAK_BLOCKS_H
#define SOAK_BLOCKS_H

#include "soak_world.h"

#define LARGEST_BITS 25 /* blocks of up to 32 MiB, small ones as likely as large ones */

static inline void check_refusal(size_t bytes) {
    gpupool_verdict why;
    if (gpupool_last_result() != GPUPOOL_E_OUT_OF_MEMORY) return;
    CHECK_RESULT(gpupool_last_verdict(&why), GPUPOOL_OK);
    CHECK(why.cause != GPUPOOL_CAUSE_NONE && why.sentence[0]);
    CHECK_EQ(why.asked_bytes, bytes);
}

static inline void check_device(const world *w, const void *at) {
    struct cudaPointerAttributes where;
    memset(&where, 0, sizeof where);
    MUST(cudaPointerGetAttributes(&where, at));
    if (where.type == cudaMemoryTypeDevice) CHECK_EQ(where.device, w->device);
}

/* cudaMallocAsync goes by the stream, whichever device is current; but for default streams, which
   have no device of their own, and where CUDA has failed to tell, or to say whom to ask, now or as
   an arena was made: that block goes at once. */
static inline void *get_as_cuda(actor *a, world *w, block *b, cudaStream_t stream) {
    void *at = NULL;
    b->anyones = below(a, 2) != 0;
    be_on(a, stream && !b->anyones && below(a, 2) ? !w->device : w->device);
    soak_before(a);
    if (b->anyones) {
        gpupool_cudaMalloc(&at, b->bytes);
        return at;
    }
    while (gpupool_cudaMallocAsync(&at, b->bytes, stream) == cudaSuccess &&
           kit_size(w->arena, at) != b->bytes) {
        soak_seen(a, GPUPOOL_OK, "cudaMallocAsync");
        CHECK(fake_fail_fired() > 0);
        while (gpupool_cudaFreeAsync(at, stream) != cudaSuccess) {}
        be_on(a, w->device);
        soak_before(a);
    }
    return at;
}

static inline void *get_in_a_way(actor *a, world *w, block *b, unsigned kind, cudaStream_t stream) {
    size_t alignment = (size_t)1 << below(a, 22);
    void *at;
    if (kind == 2 && a->device == 0 && !b->graph) return get_as_cuda(a, w, b, stream);
    if (kind == 2 && stream) be_on(a, (int)below(a, WORLDS));
    soak_before(a);
    if (kind == 0) return gpupool_zalloc(w->arena, b->bytes, stream);
    if (kind > 2 && kind < 7) { /* NO_WAIT, ONE_CHUNK, both or none, often with a tag */
        gpupool_request request = kit_request(b->bytes, stream, 2u * (unsigned)below(a, 4));
        request.tag = b->tag;
        return gpupool_alloc_request(w->arena, &request);
    }
    if (kind != 1) return gpupool_alloc(w->arena, b->bytes, stream);
    at = gpupool_alloc_aligned(w->arena, b->bytes, alignment, stream);
    CHECK_EQ((uintptr_t)at & (alignment - 1), 0);
    return at;
}

/* A request with a tag that sleeps is refused. */
static inline int has_come(actor *a, const world *w, const block *b, const void *at) {
    if (!w->tag[b->tag].asleep) return soak_after(a, kit_why(at), 1, "an allocation");
    soak_refused(a, kit_why(at), GPUPOOL_E_ASLEEP, "a request of a sleeping tag");
    return 0;
}

static inline void get_block(actor *a, world *w, block *b, unsigned to) {
    unsigned kind = (unsigned)below(a, 10);
    cudaStream_t stream;
    b->tag = kind > 2 && kind < 7 ? (int)below(a, SOAK_TAGS + 1) : 0;
    pthread_rwlock_rdlock(&w->tag[b->tag].lock);
    stream = enter(a, w, to);
    uint64_t pending = soak_alone ? kit_stats(w->arena).pending.now : 0;
    void *at;
    b->bytes = 1 + (size_t)below(a, (uint64_t)1 << below(a, LARGEST_BITS + 1));
    b->byte = (int)below(a, 256);
    b->graph = w->place[to].graph;
    at = get_in_a_way(a, w, b, kind, stream);
    if (!at) check_refusal(b->bytes);
    if (has_come(a, w, b, at)) {
        be_on(a, w->place[to].device);
        b->at = (char *)at;
        belongs(w, b, to);
        check_device(w, at);
        if (kind == 0) verify(b, stream, 0);
        stamp(b, stream);
        is_written_now(w, b);
    } else {
        b->graph = NULL;
        b->anyones = 0;
        /* 0: the block goes back to its stream; so it does without records for a graph's */
        if (soak_alone && kind && fail_malloc_fired == a->starved)
            CHECK(kit_stats(w->arena).pending.now <= pending);
    }
    leave(w, to);
    pthread_rwlock_unlock(&w->tag[b->tag].lock);
}

static inline void act_get_or_put(actor *a, world *w) {
    block *b = pick_up(a, w);
    if (!b) return;
    if (b->at) {
        unsigned to = below(a, 4) ? b->place : some_place(a, w);
        enter_after(a, w, b, to);
        give_back(a, w, b, to);
        leave(w, to);
    } else {
        get_block(a, w, b, some_place(a, w));
    }
    put_down(w, b);
}

static inline void act_write(actor *a, world *w) {
    block *b = pick_up(a, w);
    if (b && b->at && !b->lent && !b->graph) {
        unsigned to = some_place(a, w);
        cudaStream_t stream = enter_after(a, w, b, to);
        if (is_written(w, b)) verify(b, stream, b->byte);
        b->byte = (int)below(a, 256);
        stamp(b, stream);
        is_written_now(w, b);
        belongs(w, b, to);
        leave(w, to);
    }
    if (b) put_down(w, b);
}

/* Read on another stream, which says so; if it cannot, or the block is a graph's, the block moves
   there instead. */
static inline void act_lend(actor *a, world *w) {
    block *b = pick_up(a, w);
    if (b && b->at && is_written(w, b)) {
        unsigned to = some_place(a, w);
        cudaStream_t stream = enter_after(a, w, b, to);
        verify(b, stream, b->byte);
        if (b->graph) b->graph->after |= 1u << to;
        if (!b->graph && CALL(a, 0, gpupool_record_stream(w->arena, b->at, stream))) b->lent = 1;
        else belongs(w, b, to);
        leave(w, to);
    }
    if (b) put_down(w, b);
}

static inline void act_misuse(actor *a, world *w) {
    world *other = &soak_world[w == soak_world];
    block *b = pick_up(a, w);
    static char host[600];
    if (b && b->at) {
        unsigned to = b->place;
        cudaStream_t stream = enter(a, w, to);
        REFUSED(a, GPUPOOL_E_NOT_OURS, gpupool_free(other->arena, b->at, stream));
        REFUSED(a, GPUPOOL_E_NOT_OURS, gpupool_free(w->arena, host, stream));
        REFUSED(a, GPUPOOL_E_ARGUMENT, kit_why(gpupool_alloc(w->arena, 0, stream)));
        if (soak_alone) /* nobody else may use it meanwhile */
            REFUSED(a, GPUPOOL_E_IN_USE, gpupool_arena_destroy(w->arena));
        CHECK_EQ(kit_size(w->arena, b->at + 1), 0);
        if (b->bytes > 1)
            REFUSED(a, GPUPOOL_E_INSIDE, gpupool_free(w->arena, b->at + b->bytes - 1, stream));
        leave(w, to);
    }
    if (b) put_down(w, b);
}

#endif
