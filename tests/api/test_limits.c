/* Limits: in bytes, as a fraction, as text, from the environment; and that they hold. */
#define _DEFAULT_SOURCE /* setenv */
#include "gpupool.h"
#include "arena_kit.h"
#include "limit_kit.h"

#include <math.h>

static size_t device_figure(int total) {
    size_t free_bytes = 0, total_bytes = 0;
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    return total ? total_bytes : free_bytes;
}

/* Shares of the device are worked out in floating point: a byte more or less is no matter. */
static void limit_near(gpupool_arena *arena, double expected) {
    double got = (double)kit_limit(arena);
    if (fabs(got - expected) > 1)
        check_fail(__FILE__, __LINE__, "the limit is %.0f, not %.0f", got, expected);
}

/* ---- bytes ---- */

static void limits_in_bytes(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 10 * MIB);
    CHECK_EQ(kit_limit(arena), 10 * MIB);
    const size_t limits[] = {1, 511, 2 * MIB, 3 * GIB + 1, SIZE_MAX / 2, 0};
    for (size_t i = 0; i < KIT_COUNT(limits); i++) {
        CHECK_RESULT(gpupool_set_limit(arena, limits[i]), GPUPOOL_OK);
        CHECK_EQ(kit_limit(arena), limits[i]);
        CHECK_EQ(kit_stats(arena).limit_bytes, limits[i]);
    }
    size_t none = 77;
    CHECK_RESULT(gpupool_get_limit(arena, &none), GPUPOOL_OK);
    CHECK_EQ(none, 0);
    kit_close(arena);
}

/* ---- text ---- */

static const struct { const char *text; double bytes; } exact_texts[] = {
    {"1073741824", 1073741824.0},
    {"1048576B", 1048576.0},
    {"12GiB", 12884901888.0},
    {"12G", 12884901888.0},
    {"1.5G", 1610612736.0},
    {"0.5GiB", 536870912.0},
    {"512 MiB", 536870912.0},
    {"64KiB", 65536.0},
    {"64K", 65536.0},
    {"100M", 104857600.0},
    {"19M", 19922944.0},
    {"1T", 1099511627776.0},
    {"1TiB", 1099511627776.0},
    {"12GB", 12e9},
    {"12MB", 12e6},
    {"500KB", 500e3},
    {"2.9KB", 2900.0},
    {"2.01KB", 2010.0},
    {"4.35MB", 4350e3},
    {"2TB", 2e12},
    {"12gib", 12884901888.0},
};

static void limits_as_text(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    for (size_t i = 0; i < KIT_COUNT(exact_texts); i++) {
        check_case("\"%s\"", exact_texts[i].text);
        CHECK_RESULT(gpupool_set_limit_text(arena, exact_texts[i].text), GPUPOOL_OK);
        CHECK_EQ(kit_limit(arena), exact_texts[i].bytes);
    }
    kit_close(arena);
}

static void limits_as_a_share_of_the_device(void) {
#if CHECK_FAKE
    fake_device_memory(0, 100 * GIB);
    fake_other_process(0, 20 * GIB);
#endif
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    double total = (double)device_figure(1);
    const struct { const char *text; double bytes; } shares[] = {
        {"80%", 0.8 * total},
        {"100%", total},
        {"12.5 %", 0.125 * total},
        {"0.1%", 0.001 * total},
        {"-2GiB", total - 2 * 1073741824.0},
        {"-512 MiB", total - 512 * 1048576.0},
        {"-25%", 0.75 * total},
    };
    for (size_t i = 0; i < KIT_COUNT(shares); i++) {
        check_case("\"%s\"", shares[i].text);
        CHECK_RESULT(gpupool_set_limit_text(arena, shares[i].text), GPUPOOL_OK);
        limit_near(arena, shares[i].bytes);
    }
#if CHECK_FAKE /* on a GPU that others use, free memory may change between two questions */
    CHECK_RESULT(gpupool_set_limit_text(arena, "50%free"), GPUPOOL_OK);
    limit_near(arena, 0.5 * (double)device_figure(0));
    CHECK_RESULT(gpupool_set_limit_text(arena, "80%FREE"), GPUPOOL_OK);
    limit_near(arena, 0.8 * (double)device_figure(0));
    fake_other_process(0, 100 * GIB);
    CHECK_RESULT(gpupool_set_limit_text(arena, "80%free"), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "is zero") != NULL);
#endif
    kit_close(arena);
}

#if CHECK_FAKE
static void a_share_in_whole_bytes_is_exact(void) {
    const size_t total = 16935682048;
    const size_t shares[][2] = {{25, total / 4}, {50, total / 2}, {100, total}};
    fake_device_memory(0, total);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    for (size_t i = 0; i < KIT_COUNT(shares); i++) {
        char text[16];
        snprintf(text, sizeof text, "%zu%%", shares[i][0]);
        CHECK_RESULT(gpupool_set_limit_text(arena, text), GPUPOOL_OK);
        CHECK_EQ(kit_limit(arena), shares[i][1]);
    }
    kit_close(arena);
}
#endif

static const char *const wrong_texts[] = {
    "12GB!",  "-",     "101%",   "1e99",   "",      "%",      "GiB",      "0x10",    "1.2.3G",
    "nan",    "inf",   " ",      "0",      "0%",    "0GiB",   "-100%",    "5 apples", "80%%",
    "80%fre", "1 2",   "+5G",    "--1G",   "1e9",   "-9999T", "12XB",     "1,5G",    "12GiBs",
    "5 ",     "5~",    "5{iB",
    ".",      ".G",    " 5G",    "5G ",    "5  G",  "-1e3",   "80%free!", "12 G i B", "99999999T",
    "99999999999999999999999", "0.8", "1.5", "1.0", "-1.5", "1.5B"};

static void wrong_text_changes_nothing(void) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_AUTO, 77 * MIB);
    for (size_t i = 0; i < KIT_COUNT(wrong_texts); i++) {
        const char *text = wrong_texts[i];
        check_case("\"%s\"", text);
        gpupool_stats before = kit_stats(arena);
        CHECK_RESULT(gpupool_set_limit_text(arena, text), GPUPOOL_E_ARGUMENT);
        CHECK(strstr(gpupool_last_error(), text) != NULL);
        CHECK(gpupool_last_error()[0] != 0);
        CHECK_EQ(kit_limit(arena), 77 * MIB);
        CHECK(kit_same_stats(before, kit_stats(arena)));
        gpupool_arena *none = NULL;
        gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
        config.limit_text = text;
        CHECK_RESULT(gpupool_arena_create(&none, &config), GPUPOOL_E_ARGUMENT);
        CHECK(none == NULL);
        CHECK(strstr(gpupool_last_error(), text) != NULL);
    }
    CHECK_RESULT(gpupool_set_limit_text(arena, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_set_limit_text(arena, "12GiBs"), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "no unit") != NULL);
    kit_close(arena);
}

/* ---- which of them counts ---- */

static void limit_at_creation(const char *text, size_t bytes, size_t expected) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    config.limit_text = text;
    config.limit_bytes = bytes;
    gpupool_arena *arena = kit_create(&config);
    CHECK_EQ(kit_limit(arena), expected);
    kit_close(arena);
}

static void the_nearest_limit_counts(void) {
    limit_at_creation(NULL, 0, 0);
    CHECK_EQ(setenv("GPUPOOL_LIMIT", "30MiB", 1), 0);
    limit_at_creation(NULL, 0, 30 * MIB);
    CHECK_EQ(setenv("GPUPOOL_LIMIT_0", "40MiB", 1), 0);
    limit_at_creation(NULL, 0, 40 * MIB);
    limit_at_creation(NULL, 50 * MIB, 50 * MIB);
    limit_at_creation("60MiB", 50 * MIB, 60 * MIB);
    CHECK_EQ(unsetenv("GPUPOOL_LIMIT"), 0);
    limit_at_creation(NULL, 0, 40 * MIB);
    CHECK_EQ(unsetenv("GPUPOOL_LIMIT_0"), 0);
    CHECK_EQ(setenv("GPUPOOL_LIMIT_1", "20MiB", 1), 0);
    limit_at_creation(NULL, 0, 0);
    CHECK_EQ(unsetenv("GPUPOOL_LIMIT_1"), 0);
}

static void an_empty_variable_is_none(void) {
    CHECK_EQ(setenv("GPUPOOL_LIMIT", "30MiB", 1), 0);
    CHECK_EQ(setenv("GPUPOOL_LIMIT_0", "", 1), 0);
    limit_at_creation(NULL, 0, 30 * MIB);
    CHECK_EQ(setenv("GPUPOOL_LIMIT", "", 1), 0);
    limit_at_creation(NULL, 0, 0);
    CHECK_EQ(unsetenv("GPUPOOL_LIMIT"), 0);
    limit_at_creation(NULL, 0, 0);
    CHECK_EQ(unsetenv("GPUPOOL_LIMIT_0"), 0);
}

static void the_environment_is_read_at_creation(void) {
    CHECK_EQ(setenv("GPUPOOL_LIMIT", "30MiB", 1), 0);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_EQ(setenv("GPUPOOL_LIMIT", "31MiB", 1), 0);
    CHECK_EQ(kit_limit(arena), 30 * MIB);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 40 * MIB, 0)), GPUPOOL_E_OUT_OF_MEMORY);
    kit_close(arena);
    gpupool_arena *plain = kit_create(NULL);
    CHECK_EQ(kit_limit(plain), 31 * MIB);
    kit_close(plain);
    CHECK_EQ(unsetenv("GPUPOOL_LIMIT"), 0);
}

static void wrong_environment_text_is_quoted(void) {
    static const char *const names[] = {"GPUPOOL_LIMIT", "GPUPOOL_LIMIT_0"};
    static const char *const places[] = {"environment variable GPUPOOL_LIMIT: ",
                                         "environment variable GPUPOOL_LIMIT_0: "};
    for (size_t n = 0; n < 2; n++) {
        for (size_t i = 0; i < KIT_COUNT(wrong_texts); i++) {
            if (!wrong_texts[i][0]) continue; /* an empty variable may count as unset */
            check_case("%s=\"%s\"", names[n], wrong_texts[i]);
            CHECK_EQ(setenv(names[n], wrong_texts[i], 1), 0);
            gpupool_arena *arena = NULL;
            CHECK_RESULT(gpupool_arena_create(&arena, NULL), GPUPOOL_E_ARGUMENT);
            CHECK(arena == NULL);
            CHECK(strstr(gpupool_last_error(), wrong_texts[i]) != NULL);
            CHECK(strstr(gpupool_last_error(), places[n]) != NULL);
        }
        CHECK_EQ(unsetenv(names[n]), 0);
    }
}

/* ---- that they hold ---- */

static uint64_t most_reserved(gpupool_arena *arena) { return kit_stats(arena).reserved.peak; }

static void reserved_never_exceeds_the_limit(void) { limit_holds(5, most_reserved); }

/* What a block takes where nothing is held yet: the driver's pages are 2 MiB, and cudaMalloc gives
   less for up to 1 MiB; what a caller's function gives may have to be aligned. */
static void the_least_limit_for_a_block(void) {
    static const struct { gpupool_source source; size_t bytes, least; } blocks[] = {
        {GPUPOOL_SOURCE_MAPPED, 1, 2 * MIB},
        {GPUPOOL_SOURCE_DEVICE, 1000, KIB},
        {GPUPOOL_SOURCE_DEVICE, MIB, MIB},
        {GPUPOOL_SOURCE_DEVICE, MIB + 1, 2 * MIB},
        {GPUPOOL_SOURCE_MANAGED, 2 * MIB + 1, 4 * MIB},
        {GPUPOOL_SOURCE_PINNED, 3 * MIB, 3 * MIB},
        {GPUPOOL_SOURCE_BYPASS, 3 * MIB, 3 * MIB},
        {GPUPOOL_SOURCE_CUSTOM, MIB, MIB + 512}};
    for (size_t i = 0; i < KIT_COUNT(blocks); i++) {
        check_case("block %zu", i);
        gpupool_arena *arena = kit_open_limited(blocks[i].source, blocks[i].least - 1);
        CHECK_RESULT(kit_why(gpupool_alloc(arena, blocks[i].bytes, kit_stream[0])),
                     GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_RESULT(gpupool_set_limit(arena, blocks[i].least), GPUPOOL_OK);
        void *block = kit_alloc(arena, blocks[i].bytes, kit_stream[0]);
        CHECK_EQ(kit_reserved(arena), blocks[i].least);
        CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

/* Not a chunk for each block, where the limit leaves less than a page. */
static void the_last_of_a_limit_is_one_chunk(void) {
    static const gpupool_source chunked[] = {GPUPOOL_SOURCE_DEVICE, GPUPOOL_SOURCE_MANAGED,
                                             GPUPOOL_SOURCE_PINNED, GPUPOOL_SOURCE_CUSTOM};
    for (size_t i = 0; i < KIT_COUNT(chunked); i++) {
        static void *block[16 * KIB];
        size_t count = 0;
        check_case("source %d", (int)chunked[i]);
        gpupool_arena *arena = kit_open_limited(chunked[i], 3 * MIB + 700);
        while ((block[count] = gpupool_alloc(arena, 512, kit_stream[0])) != NULL) count++;
        CHECK(count >= 3 * MIB / 512 - 2);
        CHECK(kit_reserved(arena) <= 3 * MIB + 700);
        CHECK(kit_stats(arena).chunks_gained <= 3);
        while (count)
            CHECK_RESULT(gpupool_free(arena, block[--count], kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

static void lowering_the_limit_trims_idle_memory(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        if (kit_sources[i].source == GPUPOOL_SOURCE_BYPASS) continue;
        check_case("%s", kit_sources[i].name);
        gpupool_arena *arena = kit_open(kit_sources[i].source);
        void *block[4];
        for (size_t k = 0; k < 4; k++) block[k] = kit_alloc(arena, 64 * MIB, kit_stream[0]);
        for (size_t k = 1; k < 4; k++)
            CHECK_RESULT(gpupool_free(arena, block[k], kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
        CHECK_RESULT(gpupool_set_limit(arena, 100 * MIB), GPUPOOL_OK);
        CHECK(kit_reserved(arena) <= 100 * MIB);
        CHECK_RESULT(gpupool_set_limit(arena, 10 * MIB), GPUPOOL_OK); /* less than is live */
        CHECK_EQ(kit_limit(arena), 10 * MIB);
        CHECK(kit_reserved(arena) >= 64 * MIB);
        CHECK(kit_reserved(arena) <= 66 * MIB); /* a chunk may be a little larger than its block */
        CHECK_RESULT(kit_why(gpupool_alloc(arena, 3 * MIB, kit_stream[0])),
                     GPUPOOL_E_OUT_OF_MEMORY);
        CHECK_RESULT(gpupool_free(arena, block[0], kit_stream[0]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
        void *large = kit_alloc(arena, 300 * MIB, kit_stream[0]);
        CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
        kit_close(arena);
    }
}

/* Above a lowered limit nothing grows, and what is free is stitched; what is idle then goes with
   the next call that gives back. */
static void above_a_lowered_limit_idle_memory_is_stitched(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    config.chunk_bytes = 2 * MIB;
    gpupool_arena *arena = kit_create(&config);
    void *block[5];
    for (int i = 0; i < 5; i++) block[i] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_set_limit(arena, 8 * MIB), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 10 * MIB); /* all live */
    for (int i = 0; i < 5; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_finish(arena);
    CHECK(kit_fits(arena, 4 * MIB, NULL));
    void *larger = kit_alloc(arena, 4 * MIB, kit_stream[0]);
    CHECK_EQ(kit_stats(arena).stitched_bytes, 4 * MIB);
    CHECK_EQ(kit_reserved(arena), 10 * MIB);
    CHECK_RESULT(kit_why(gpupool_alloc(arena, 4 * MIB, kit_stream[0])), GPUPOOL_E_OUT_OF_MEMORY);
    CHECK_RESULT(gpupool_set_limit(arena, 8 * MIB), GPUPOOL_OK);
    CHECK_EQ(kit_reserved(arena), 8 * MIB);
    CHECK_RESULT(gpupool_free(arena, larger, kit_stream[0]), GPUPOOL_OK);
    for (int i = 1; i < 5; i += 2)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

int main(void) {
    /* what the machine's owner has set must not decide what is tested */
    unsetenv("GPUPOOL_LIMIT");
    unsetenv("GPUPOOL_LIMIT_0");
    ARENA_TEST(limits_in_bytes);
    ARENA_TEST(limits_as_text);
    ARENA_TEST(limits_as_a_share_of_the_device);
    FAKE_TEST(a_share_in_whole_bytes_is_exact);
    ARENA_TEST(wrong_text_changes_nothing);
    ARENA_TEST(the_nearest_limit_counts);
    ARENA_TEST(an_empty_variable_is_none);
    ARENA_TEST(the_environment_is_read_at_creation);
    ARENA_TEST(wrong_environment_text_is_quoted);
    ARENA_TEST(reserved_never_exceeds_the_limit);
    ARENA_TEST(the_least_limit_for_a_block);
    ARENA_TEST(the_last_of_a_limit_is_one_chunk);
    ARENA_TEST(lowering_the_limit_trims_idle_memory);
    ARENA_TEST(above_a_lowered_limit_idle_memory_is_stitched);
    return check_finish();
}
