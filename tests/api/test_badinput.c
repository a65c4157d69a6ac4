/* Wrong calls: each gets its result and a sentence, and changes nothing. */
#include "gpupool.h"
#include "arena_kit.h"

static gpupool_arena *arena; /* the arena that a wrong call must not change */
static gpupool_stats before;

static void open_arena(gpupool_source source) {
    arena = kit_open(source);
    before = kit_stats(arena);
}

static void nothing_changed(void) {
    CHECK(kit_same_stats(before, kit_stats(arena)));
    CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    CHECK_EQ(cudaPeekAtLastError(), cudaSuccess);
}

/* A refusal: its result, its sentence, and an arena as it was. */
static int refused(gpupool_result got, gpupool_result expected, const char *call, int line) {
    int right = check_result(got, expected, call, __FILE__, line);
    if (strlen(gpupool_last_error()) < 10)
        right = check_fail(__FILE__, line, "no sentence after %s", call);
    right &= check_equal(gpupool_last_result(), got, "gpupool_last_result()", call, __FILE__, line);
    nothing_changed();
    return right;
}
#define REFUSED(call, expected) refused((call), (expected), #call, __LINE__)
#define REFUSED_NULL(call, expected) refused(kit_why(call), (expected), #call, __LINE__)

/* ---- sizes and alignments ---- */

#define MOST ((size_t)1 << 48) /* what a size may be; more is a mistake of arithmetic */

static void refuse_size(size_t bytes, gpupool_result expected) {
    REFUSED_NULL(gpupool_alloc(arena, bytes, kit_stream[0]), expected);
    REFUSED_NULL(gpupool_zalloc(arena, bytes, kit_stream[0]), expected);
    REFUSED_NULL(gpupool_alloc_aligned(arena, bytes, 4096, kit_stream[0]), expected);
    CHECK_EQ(kit_fits(arena, bytes, NULL), 0);
}

static void sizes_from(gpupool_source source) {
    const size_t beyond[] = {0,
                             MOST + 1,
                             SIZE_MAX / 2,
                             SIZE_MAX / 2 + 1,
                             SIZE_MAX - 2 * MIB,
                             SIZE_MAX - 512,
                             SIZE_MAX - 511,
                             SIZE_MAX - 510,
                             SIZE_MAX};
    const size_t huge[] = {MOST, MOST - 1, MOST / 2 + 1, (size_t)1 << 45};
    gpupool_verdict why;
    open_arena(source);
    for (size_t i = 0; i < KIT_COUNT(beyond); i++) {
        check_case("source %d, %zu bytes", (int)source, beyond[i]);
        refuse_size(beyond[i], GPUPOOL_E_ARGUMENT);
        CHECK_EQ(kit_stats(arena).failures, 3 * (i + 1));
    }
    /* these two may promise more than there is */
    int lax = source == GPUPOOL_SOURCE_MANAGED || source == GPUPOOL_SOURCE_PINNED;
    for (size_t i = 0; !lax && i < KIT_COUNT(huge); i++) {
        check_case("source %d, %zu bytes", (int)source, huge[i]);
        refuse_size(huge[i], GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_RESULT(gpupool_last_verdict(&why), GPUPOOL_OK);
        CHECK_EQ(why.cause, GPUPOOL_CAUSE_TOO_LARGE);
    }
    kit_close(arena);
}

static void sizes_that_cannot_be(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) sizes_from(kit_sources[i].source);
}

static void alignments_that_cannot_be(void) {
    open_arena(GPUPOOL_SOURCE_AUTO);
    const size_t odd[] = {3, 5, 6, 511, 513, 1000, GIB + 1, SIZE_MAX, SIZE_MAX - 1,
                          SIZE_MAX / 2 + 1, 2048 * GIB};
    for (size_t i = 0; i < KIT_COUNT(odd); i++) {
        check_case("alignment %zu", odd[i]);
        REFUSED_NULL(gpupool_alloc_aligned(arena, 1000, odd[i], kit_stream[0]),
                     GPUPOOL_E_ARGUMENT);
        CHECK_EQ(kit_stats(arena).failures, i + 1);
    }
    void *block = gpupool_alloc_aligned(arena, 1000, 1024 * GIB, kit_stream[0]); /* can, just */
    CHECK(kit_why(block) != GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- pointers ---- */

static void refused_everywhere(void *pointer, gpupool_result expected) {
    REFUSED(gpupool_free(arena, pointer, kit_stream[0]), expected);
    REFUSED(gpupool_record_stream(arena, pointer, kit_stream[0]), expected);
    CHECK_EQ(kit_size(arena, pointer), 0);
    REFUSED(gpupool_last_result(), expected);
}

static void foreign_pointers(void *theirs) {
    int here = 0;
    before = kit_stats(arena);
    refused_everywhere(&here, GPUPOOL_E_NOT_OURS);
    refused_everywhere(theirs, GPUPOOL_E_NOT_OURS);
    refused_everywhere((void *)(uintptr_t)1, GPUPOOL_E_NOT_OURS);
    refused_everywhere((void *)UINTPTR_MAX, GPUPOOL_E_NOT_OURS);
}

static void pointers_from(gpupool_source source) {
    gpupool_arena *other = kit_open(source);
    void *theirs = kit_alloc(other, 5000, kit_stream[0]);
    arena = kit_open(source);
    foreign_pointers(theirs); /* while it has nothing yet */
    char *block = (char *)kit_alloc(arena, 5000, kit_stream[0]);
    foreign_pointers(theirs);
    const size_t inside[] = {1, 2, 255, 256, 511, 512, 1024, 4608, 4999};
    for (size_t i = 0; i < KIT_COUNT(inside); i++) {
        check_case("source %d, %zu bytes into a block", (int)source, inside[i]);
        refused_everywhere(block + inside[i], GPUPOOL_E_INSIDE);
    }
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(other, theirs, kit_stream[0]), GPUPOOL_OK);
    kit_close(other);
    kit_close(arena);
}

static void pointers_that_are_no_block(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        pointers_from(kit_sources[i].source);
    }
}

static void pointers_that_are_free_already(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        if (kit_sources[i].source == GPUPOOL_SOURCE_BYPASS) continue; /* keeps nothing it freed */
        arena = kit_open(kit_sources[i].source);
        void *block[30];
        for (size_t k = 0; k < 30; k++)
            block[k] = kit_alloc(arena, (size_t)600 << (k % 16), kit_stream[0]);
        for (size_t k = 0; k < 30; k += 2)
            CHECK_RESULT(gpupool_free(arena, block[k], kit_stream[0]), GPUPOOL_OK);
        before = kit_stats(arena);
        for (size_t k = 0; k < 30; k += 2) {
            check_case("%s, block %zu", kit_sources[i].name, k);
            refused_everywhere(block[k], GPUPOOL_E_DOUBLE_FREE);
            refused_everywhere((char *)block[k] + 100, GPUPOOL_E_DOUBLE_FREE);
        }
        for (size_t k = 1; k < 30; k += 2)
            CHECK_RESULT(gpupool_free(arena, block[k], kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

/* ---- NULL everywhere ---- */

static void null_instead_of_an_arena(void) {
    gpupool_stats stats;
    gpupool_verdict why;
    size_t released;
    gpupool_block found;
    memset(&why, 0xff, sizeof why);
    open_arena(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, 100, kit_stream[0]);
    before = kit_stats(arena);
    REFUSED(gpupool_arena_destroy(NULL), GPUPOOL_E_ARGUMENT);
    REFUSED_NULL(gpupool_alloc(NULL, 1, 0), GPUPOOL_E_ARGUMENT);
    REFUSED_NULL(gpupool_alloc_aligned(NULL, 1, 1, 0), GPUPOOL_E_ARGUMENT);
    REFUSED_NULL(gpupool_zalloc(NULL, 1, 0), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_free(NULL, block, 0), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_free(NULL, NULL, 0), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_free_in_host_function(NULL, block, 0), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_record_stream(NULL, block, 0), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_get_block(NULL, &why, &found), GPUPOOL_E_NOT_OURS);
    REFUSED(gpupool_walk_blocks(NULL, NULL, NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_wait_stream(NULL, 0), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_wait_all(NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_disallow_peer(NULL, 1), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_trim(NULL, 0, &released), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_retire_stream(NULL, kit_stream[0]), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_set_limit(NULL, 0), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_set_limit_text(NULL, "1G"), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(kit_limit(NULL), 0);
    REFUSED(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(kit_available(NULL), 0);
    REFUSED(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(kit_fits(NULL, 1, NULL), 0);
    REFUSED(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(kit_fits(NULL, 1, &why), 0);
    CHECK(why.cause == GPUPOOL_CAUSE_NONE && why.limit_bytes == 0 && why.sentence[0] == 0);
    REFUSED(gpupool_get_stats(NULL, &stats), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_reset_peaks(NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_check(NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_report(NULL, stdout), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_write_svg(NULL, stdout), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    kit_close(arena);
}

static void null_instead_of_the_rest(void) {
    open_arena(GPUPOOL_SOURCE_AUTO);
    REFUSED(gpupool_arena_create(NULL, NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_record_stream(arena, NULL, 0), GPUPOOL_E_NOT_OURS);
    CHECK_EQ(kit_size(arena, NULL), 0);
    REFUSED(gpupool_last_result(), GPUPOOL_E_NOT_OURS);
    REFUSED(gpupool_set_limit_text(arena, NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_last_verdict(NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_get_limit(arena, NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_get_limit(NULL, NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_get_available(arena, NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_get_available(NULL, NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_get_stats(arena, NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_report(arena, NULL), GPUPOOL_E_ARGUMENT);
    REFUSED(gpupool_write_svg(arena, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_trim(arena, 0, NULL), GPUPOOL_OK); /* here NULL is allowed */
    kit_close(arena);
}

/* ---- configurations ---- */

static void no_arena_from(const gpupool_arena_config *config) {
    gpupool_arena *none = (gpupool_arena *)&before; /* must come back NULL, not untouched */
    REFUSED(gpupool_arena_create(&none, config), GPUPOOL_E_ARGUMENT);
    CHECK(none == NULL);
    if (none && none != (gpupool_arena *)&before) gpupool_arena_destroy(none);
}

static void configurations_full_of_rubbish(void) {
    open_arena(GPUPOOL_SOURCE_AUTO);
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    const int sources[] = {-1, 7, 99, 0x7fffffff};
    for (size_t i = 0; i < KIT_COUNT(sources); i++) {
        check_case("source %d", sources[i]);
        memcpy(&config.source, &sources[i], sizeof config.source);
        no_arena_from(&config);
    }
    const int devices[] = {-2, -7, 99, kit_devices(), (int)0x80000000u, 0x7fffffff};
    char words[64];
    snprintf(words, sizeof words, "it must be from -1 (the current one) to %d", kit_devices() - 1);
    for (size_t i = 0; i < KIT_COUNT(devices); i++) {
        check_case("device %d", devices[i]);
        config = kit_config(GPUPOOL_SOURCE_AUTO);
        config.device = devices[i];
        no_arena_from(&config);
        CHECK(strstr(gpupool_last_error(), words) != NULL);
        REFUSED_NULL(gpupool_get_default_arena(devices[i]), GPUPOOL_E_ARGUMENT);
    }
    check_case("half a pair of functions");
    config = kit_config(GPUPOOL_SOURCE_CUSTOM);
    config.chunk_free = NULL;
    no_arena_from(&config);
    config = kit_config(GPUPOOL_SOURCE_CUSTOM);
    config.chunk_alloc = NULL;
    no_arena_from(&config);
    config.chunk_free = NULL;
    no_arena_from(&config);
    check_case("a configuration of all ones");
    memset(&config, 0xff, sizeof config);
    config.limit_text = config.name = NULL;
    no_arena_from(&config);
    kit_close(arena);
}

static void *boundless(size_t bytes, int device, void *user) {
    (void)bytes, (void)device, (void)user;
    return (void *)((uintptr_t)1 << 48); /* never touched: only the records are at stake */
}

static void give_back_nothing(void *chunk, size_t bytes, int device, void *user) {
    (void)chunk, (void)bytes, (void)device, (void)user;
}

static void the_largest_size_that_is_allowed(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_CUSTOM);
    config.chunk_alloc = boundless;
    config.chunk_free = give_back_nothing;
    gpupool_arena *large = kit_create(&config);
    void *block = kit_alloc(large, (size_t)1 << 48, kit_stream[0]);
    CHECK_RESULT(gpupool_check(large), GPUPOOL_OK);
    CHECK_EQ(kit_size(large, block), (size_t)1 << 48);
    CHECK_RESULT(gpupool_free(large, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(large);
}

int main(void) {
    ARENA_TEST(sizes_that_cannot_be);
    ARENA_TEST(alignments_that_cannot_be);
    ARENA_TEST(pointers_that_are_no_block);
    ARENA_TEST(pointers_that_are_free_already);
    ARENA_TEST(null_instead_of_an_arena);
    ARENA_TEST(null_instead_of_the_rest);
    ARENA_TEST(configurations_full_of_rubbish);
    ARENA_TEST(the_largest_size_that_is_allowed);
    return check_finish();
}
