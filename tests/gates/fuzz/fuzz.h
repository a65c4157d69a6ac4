/* fuzz.h: bytes that decide what a program does next. A harness is a function that turns them into
   calls and checks what comes of it; fuzz.c feeds it with a fuzzer's bytes, test_fuzz.c with
   those that are kept in corpus/. */
#ifndef FUZZ_H
#define FUZZ_H

#include "arena_kit.h"

/* One step is four bytes, so that a fuzzer can cut, copy and join steps. */
typedef struct fuzz_step { uint8_t verb, a, b, c; } fuzz_step;

typedef struct fuzz_bytes { const uint8_t *at; size_t left; } fuzz_bytes;

/* 0: there are no more. The last one may be short; the rest of it is zero then. */
static inline int fuzz_next(fuzz_bytes *in, fuzz_step *step) {
    uint8_t all[4] = {0, 0, 0, 0};
    size_t n = in->left < sizeof all ? in->left : sizeof all;
    if (n == 0 || atomic_load(&check_bad)) return 0;
    memcpy(all, in->at, n);
    in->at += n;
    in->left -= n;
    step->verb = all[0];
    step->a = all[1];
    step->b = all[2];
    step->c = all[3];
    return 1;
}

/* 1 byte to 64 MiB: five bits of figures, three of size; even sizes one less as often as not. */
static inline size_t fuzz_size(uint8_t byte, int one_less) {
    size_t size = (size_t)((byte & 31) + 1) << (byte >> 5) * 3;
    return one_less && size > 1 ? size - 1 : size;
}

/* ---- faults: the next call of gpupool runs under the one that is due ---- */

static struct {
    fuzz_step due; /* verb 0: none */
    long further;  /* so many calls later than it says */
    long fired;    /* during the last call */
    unsigned results; /* that the call under way may have, as bits */
} fuzz_fault;

static inline void fuzz_fault_arm(void) {
    static const char *const calls[] = {
        "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
        "cuMemAlloc", "cuMemFree", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister",
        "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent",
        "cuMemcpyAsync", "cuMemsetD8Async"};
    const fuzz_step *due = &fuzz_fault.due;
    long n = 1 + due->c % 24;
    if (due->verb == 0) return;
    fake_fail_except("cuStreamDestroy"); /* one that is not destroyed is lost */
    if (due->a % 4 == 0) fail_malloc_nth(1 + n % 6, due->b & 1);
    else if (due->a % 4 == 1) fake_fail_nth(n + fuzz_fault.further, due->b & 1);
    else fake_fail_call(calls[due->a / 4 % KIT_COUNT(calls)], 1 + n % 4, due->b & 1, 0);
}

static inline gpupool_result fuzz_fault_disarm(gpupool_result result) {
    fuzz_fault.fired = fake_fail_fired() + fail_malloc_fired;
    if (fuzz_fault.due.verb == 0) return result;
    fuzz_fault.due.verb = 0;
    fake_fail_clear();
    kit_capture_globally();
    fail_malloc_nth(0, 0);
    cudaGetLastError();
    return result;
}

#define FUZZ_ASK(call) (fuzz_fault_arm(), fuzz_fault_disarm(call))

/* 1: it went well. Else it must be one of the results allowed (bits), or a fault's doing. */
static inline int fuzz_went_well(gpupool_result got, unsigned allowed, const char *call) {
    unsigned faulty = 1u << GPUPOOL_E_CUDA | 1u << GPUPOOL_E_HOST_MEMORY |
                      1u << GPUPOOL_E_OUT_OF_MEMORY | 1u << GPUPOOL_E_TIMEOUT;
    if (got == GPUPOOL_OK) return 1;
    if (fuzz_fault.fired) allowed |= faulty;
    if (!(allowed >> got & 1))
        check_fail(__FILE__, __LINE__, "%s: %s after %ld faults (%s)", call,
                   gpupool_result_name(got), fuzz_fault.fired, gpupool_last_error());
    return 0;
}
#define FUZZ_NO_MEMORY (1u << GPUPOOL_E_OUT_OF_MEMORY)
/* What is allowed is decided before the call, which may change what that depends on. */
#define FUZZ_TRY(call, allowed) \
    (fuzz_fault.results = (allowed), \
     fuzz_went_well(FUZZ_ASK(call), fuzz_fault.results, #call))

/* ---- the frame around one input ---- */

static inline void fuzz_prepare(void) {
    atomic_store(&check_bad, 0);
    memset(&fuzz_fault, 0, sizeof fuzz_fault);
    kit_prepare();
}

static inline int fuzz_settle(void) {
    kit_free_stuck(&kit_custom);
    kit_settle();
    CHECK_EQ(fail_malloc_live, 0);
    return atomic_load(&check_bad) == 0;
}

#endif
