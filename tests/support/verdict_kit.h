/* verdict_kit.h: what a verdict advises, taken from its sentence and followed to the letter. */
#ifndef VERDICT_KIT_H
#define VERDICT_KIT_H

#include "arena_kit.h"

/* The bytes that stand behind these words in the sentence, as a person would type them; 0: the
   words are not there. */
static inline size_t advised_bytes(const gpupool_verdict *v, const char *words) {
    static const char units[] = " KMGT";
    const char *at = strstr(v->sentence, words);
    double value;
    char unit[8] = "";
    if (!at || sscanf(at + strlen(words), " %lf %7[A-Za-z]", &value, unit) != 2) return 0;
    const char *found = strchr(units, unit[0]);
    if (unit[0] == 'B' || !found) return (size_t)value;
    for (; found > units; found--) value *= 1024;
    return (size_t)value;
}

static inline void says(const gpupool_verdict *v, const char *words) {
    if (!strstr(v->sentence, words))
        check_fail(__FILE__, __LINE__, "not \"%s\": %s", words, v->sentence);
}

static inline void has_cause(const gpupool_verdict *v, gpupool_cause cause) {
    if (v->cause != cause)
        check_fail(__FILE__, __LINE__, "cause %d, not %d: %s", (int)v->cause, (int)cause,
                   v->sentence);
}

/* gpupool_would_fit says no with this cause. */
static inline gpupool_verdict would_not_fit(gpupool_arena *arena, size_t bytes,
                                            gpupool_cause cause) {
    gpupool_verdict v;
    memset(&v, 0, sizeof v);
    CHECK_EQ(kit_fits(arena, bytes, &v), 0);
    has_cause(&v, cause);
    return v;
}

/* gpupool_alloc says no, where gpupool_would_fit could not know. */
static inline gpupool_verdict refuses_on(gpupool_arena *arena, size_t bytes, cudaStream_t stream,
                                         gpupool_cause cause) {
    gpupool_verdict v;
    memset(&v, 0, sizeof v);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, bytes, stream)), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_last_verdict(&v), GPUPOOL_OK);
    has_cause(&v, cause);
    return v;
}

/* Both say no, in the same words. */
static inline gpupool_verdict refuses(gpupool_arena *arena, size_t bytes, gpupool_cause cause) {
    gpupool_verdict before = would_not_fit(arena, bytes, cause);
    gpupool_verdict v = refuses_on(arena, bytes, kit_stream[0], cause);
    if (strcmp(v.sentence, before.sentence) != 0)
        check_fail(__FILE__, __LINE__, "\"%s\" before, and then \"%s\"", before.sentence,
                   v.sentence);
    CHECK(strstr(gpupool_last_error(), v.sentence) != NULL);
    return v;
}

#if CHECK_FAKE
/* Other processes take what the device has free, but for this. Returns how much they have. */
static inline size_t others_take_all_but(size_t left) {
    size_t free_bytes = 0, total_bytes;
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    fake_other_process(0, free_bytes - left);
    return free_bytes - left;
}
#endif

/* It fits now, by both. Frees what it got. */
static inline void fits(gpupool_arena *arena, size_t bytes) {
    gpupool_verdict v;
    void *block;
    if (!kit_fits(arena, bytes, &v))
        check_fail(__FILE__, __LINE__, "would not fit: %s", v.sentence);
    block = kit_alloc(arena, bytes, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
}

static inline void raise_as_advised(gpupool_arena *arena, const gpupool_verdict *v) {
    size_t more = advised_bytes(v, "raise the limit by");
    if (!CHECK(more >= v->raise_bytes && more > 0)) printf("  %s\n", v->sentence);
    CHECK_RESULT(gpupool_set_limit(arena, kit_limit(arena) + more), GPUPOOL_OK);
}

/* The holder that the sentence advises to free blocks of; NULL: none. */
static inline const gpupool_holder *advised_holder(const gpupool_verdict *v) {
    for (size_t i = 0; i < GPUPOOL_HOLDERS; i++)
        if (v->holders[i].enough) return &v->holders[i];
    return NULL;
}

#endif
