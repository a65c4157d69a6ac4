#define _POSIX_C_SOURCE 200809L
#include "replay_pass.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct runner { /* one thread of a pass */
    replay_pass *pass;
    cudaStream_t *stream;
    void **block; /* by slot */
    uint64_t ns;
    size_t failures;
    int first; /* serves the stops */
    pthread_barrier_t *start;
    pthread_t thread;
} runner;

static pthread_mutex_t first_failure = PTHREAD_MUTEX_INITIALIZER;

/* Keeps the sentence of the first failure; the arena's words are this thread's. */
static void failed(runner *r) {
    replay_pass *pass = r->pass;
    gpupool_result result = gpupool_last_result();
    r->failures++;
    pthread_mutex_lock(&first_failure);
    if (pass->first_result == GPUPOOL_OK) {
        pass->first_result = result;
        snprintf(pass->first_sentence, sizeof pass->first_sentence, "%s: %s",
                 gpupool_result_name(result), gpupool_last_error());
    }
    pthread_mutex_unlock(&first_failure);
}

static void *alloc_aligned(gpupool_arena *arena, size_t bytes, size_t alignment,
                           cudaStream_t stream) {
    gpupool_request request = {bytes, alignment, stream, 0, NULL};
    return gpupool_alloc_request(arena, &request);
}

/* What only gpupool_set_trace records. What was asked for in vain may be had, but is not kept. */
static void other_call(runner *r, const replay_op *op, cudaStream_t stream) {
    gpupool_arena *arena = r->pass->arena;
    gpupool_result result = GPUPOOL_OK;
    void *block;
    if (op->kind == TRACE_USE) result = gpupool_record_stream(arena, r->block[op->slot], stream);
    if (op->kind == TRACE_RETIRE) result = gpupool_retire_stream(stream);
    if (op->kind == TRACE_TRIM) result = gpupool_trim(arena, op->bytes);
    if (op->kind == TRACE_LIMIT) result = gpupool_set_limit(arena, op->bytes);
    if (op->kind == TRACE_MISTAKE) gpupool_free(arena, r, stream);
    if (op->kind == TRACE_IN_VAIN) {
        block = alloc_aligned(arena, op->bytes, (size_t)1 << op->align, stream);
        result = block ? gpupool_free(arena, block, stream) : GPUPOOL_OK;
    }
    if (result != GPUPOOL_OK) failed(r);
}

/* 0, or it was refused. */
static int give_back(const runner *r, void *block, cudaStream_t stream) {
    if (r->pass->cuda_free) return gpupool_cudaFree(block) != cudaSuccess;
    return gpupool_free(r->pass->arena, block, stream) != GPUPOOL_OK;
}

/* The loop that is timed: nothing is in it but the calls and one table. */
static void run_ops(runner *r, const replay_op *op, const replay_op *end) {
    gpupool_arena *arena = r->pass->arena;
    int give_up = r->pass->give_up;
    void **block = r->block;
    for (; op < end; op++) {
        cudaStream_t named = r->stream[op->stream];
        cudaStream_t stream = r->pass->sync ? GPUPOOL_NO_STREAM : named;
        void **at = &block[op->slot];
        if (op->kind != TRACE_BLOCK) {
            other_call(r, op, named);
        } else if (op->bytes) {
            size_t alignment = (size_t)1 << op->align;
            *at = op->align ? alloc_aligned(arena, op->bytes, alignment, stream)
                            : gpupool_alloc(arena, op->bytes, stream);
            if (!*at) failed(r);
        } else {
            if (give_back(r, *at, stream)) failed(r);
            *at = NULL;
        }
        if (give_up && r->failures) return;
    }
}

static void *run(void *argument) {
    runner *r = argument;
    replay_pass *pass = r->pass;
    size_t done = 0, stops = r->first ? pass->stops : 0;
    if (r->start) pthread_barrier_wait(r->start);
    for (size_t i = 0; i <= stops && !(pass->give_up && r->failures); i++) {
        size_t end = i < stops ? pass->stop[i] + 1 : pass->plan->ops;
        uint64_t begin = machine_now_ns();
        run_ops(r, pass->plan->op + done, pass->plan->op + end);
        r->ns += machine_now_ns() - begin;
        done = end;
        if (i < stops) pass->on_stop(pass->user, pass, pass->stop[i]);
    }
    return NULL;
}

/* Each block left is freed on the stream that allocated it, as its owner would. */
static void free_leftover(runner *r) {
    const replay_plan *plan = r->pass->plan;
    uint32_t *stream = calloc(plan->from->slots, sizeof *stream);
    for (size_t i = 0; stream && i < plan->ops; i++)
        if (plan->op[i].bytes && plan->op[i].kind == TRACE_BLOCK)
            stream[plan->op[i].slot] = plan->op[i].stream;
    for (size_t slot = 0; slot < plan->from->slots; slot++) {
        cudaStream_t on = r->stream[stream ? stream[slot] : 0];
        if (r->pass->sync) on = GPUPOOL_NO_STREAM;
        if (r->block[slot] && give_back(r, r->block[slot], on)) failed(r);
        r->block[slot] = NULL;
    }
    free(stream);
}

static int start_threads(runner *r, unsigned threads) {
    pthread_barrier_t start;
    if (pthread_barrier_init(&start, NULL, threads) != 0) return -1;
    for (unsigned i = 0; i < threads; i++) {
        r[i].start = &start;
        if (pthread_create(&r[i].thread, NULL, run, &r[i]) == 0) continue;
        fprintf(stderr, "cannot start %u threads\n", threads);
        exit(EXIT_FAILURE); /* those that run wait for the missing one for ever */
    }
    for (unsigned i = 0; i < threads; i++) pthread_join(r[i].thread, NULL);
    pthread_barrier_destroy(&start);
    return 0;
}

/* Simulated calls take the simulation's time, which is none of the arena's: it is taken out, and
   the price of the calls put in. Each thread made its share of them. */
static uint64_t real_ns(const replay_pass *pass, uint64_t wall_ns) {
    uint64_t inside = pass->spent.inside_ns / pass->plan->threads;
    uint64_t driver = pass->spent.driver_ns / pass->plan->threads;
    return (wall_ns > inside ? wall_ns - inside : 0) + driver;
}

int replay_pass_run(replay_pass *pass) {
    const replay_plan *plan = pass->plan;
    unsigned threads = plan->threads;
    runner *r = calloc(threads, sizeof *r);
    void **block = calloc(threads * plan->from->slots, sizeof *block);
    int result = r && block ? 0 : -1;
    for (unsigned i = 0; i < threads && result == 0; i++)
        r[i] = (runner){.pass = pass,
                        .stream = plan->stream + i,
                        .first = i == 0,
                        .block = block + i * plan->from->slots};
    machine_calls calls_before = machine_count_calls();
    machine_meter before = machine_read();
    if (result == 0 && threads > 1) result = start_threads(r, threads);
    else if (result == 0) run(r);
    machine_meter after = machine_read();
    pass->spent = (machine_meter){after.inside_ns - before.inside_ns,
                                  after.driver_ns - before.driver_ns, after.calls - before.calls};
    pass->calls = machine_count_calls();
    for (int i = 0; i < MACHINE_KINDS; i++) pass->calls.of[i] -= calls_before.of[i];
    uint64_t slowest = 0;
    for (unsigned i = 0; i < threads && result == 0; i++) {
        if (r[i].ns > slowest) slowest = r[i].ns;
        free_leftover(&r[i]);
        pass->failures += r[i].failures;
    }
    pass->ns = real_ns(pass, slowest);
    free(block);
    free(r);
    return result;
}
