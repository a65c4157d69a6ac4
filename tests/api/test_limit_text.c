// build: asan -fsanitize=address,undefined
// build: off -DGPUPOOL_ENVIRONMENT=0
// build: macro -DGPUPOOL_LIMIT=67108864 -DGPUPOOL_SOURCE=GPUPOOL_SOURCE_DEVICE
/* Limits: as text, from the environment and by the macro; and those that are refused, as what they
   are. Messages stay one line. */
#define _GNU_SOURCE
#include "gpupool.h"
#include "kit.h"

#define GIB ((uint64_t)1 << 30)
#define A kit_stream[0]

static uint64_t total(void) {
    size_t free_bytes, total_bytes = 0;
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    return total_bytes;
}

static void texts(void) {
    const struct {
        const char *text;
        uint64_t limit;
    } cases[] = {{"12GiB", 12 * GIB},       {"  12 gib", 12 * GIB},
                 {"1.5g", 3 * GIB / 2},     {"2097152", 2 * MIB},
                 {"4096 KiB", 4 * MIB},     {"5MB", 5000000},
                 {"64TiB", 65536 * GIB},    {"80%", total() / 10 * 8},
                 {"12.5%", total() / 8},    {"-2GiB", total() - 2 * GIB},
                 {"-25%", total() / 4 * 3}, {"0", 0},
                 {"0.1GB", 100000000},      {"1", 1}};
    gpupool_arena *arena = kit_open(0);
    for (size_t i = 0; i < KIT_COUNT(cases); i++) {
        uint64_t limit, off;
        check_case("%s", cases[i].text);
        CHECK_RESULT(gpupool_set_limit_text(arena, cases[i].text), GPUPOOL_OK);
        limit = kit_stats(arena).limit;
        off = limit > cases[i].limit ? limit - cases[i].limit : cases[i].limit - limit;
        CHECK(off < 16); /* of a part of the memory, which need not be whole */
    }
    kit_close(arena);
}

/* Nothing changes, and the message quotes the text in one line. */
static void wrong_texts(void) {
    static const struct {
        const char *text, *word;
    } cases[] = {{"", "number"},
                 {"banana", "\"banana\" does not begin with a number"},
                 {"-", "number"},
                 {".5G", "number"},
                 {"+1G", "number"},
                 {"12GiBs", "unit"},
                 {"12 GiB ", "unit"},
                 {"1e9", "unit"},
                 {"12GiB\nBEGIN", "\"12GiB\\x0aBEGIN\""},
                 {"0.8", "needs a unit"},
                 {"-1", "needs a unit"},
                 {"-100%", "leaves nothing"},
                 {"0%", "nothing"},
                 {"99999999999999999999999", "larger"},
                 {"65TiB", "more than 2^46"}};
    char letters[128];
    gpupool_arena *arena = kit_open(64 * MIB);
    const char *quoted;
    for (size_t i = 0; i < KIT_COUNT(cases); i++) {
        check_case("%s", cases[i].text);
        KIT_REFUSES(gpupool_set_limit_text(arena, cases[i].text), GPUPOOL_E_ARGUMENT,
                    cases[i].word);
        CHECK(!strchr(gpupool_last_error(), '\n'));
        CHECK_EQ(kit_stats(arena).limit, 64 * MIB);
    }
    check_case("%s", "");
    letters[0] = '1';
    letters[127] = 0;
    for (int i = 1; i < 127; i++) letters[i] = i % 2 ? '\xc3' : '\xa4';
    for (int cut = 0; cut < 2; cut++) { /* no letter is cut in two, wherever the cut falls */
        KIT_REFUSES(gpupool_set_limit_text(arena, letters + cut), GPUPOOL_E_ARGUMENT, "\"");
        quoted = strrchr(gpupool_last_error(), '"');
        CHECK(quoted && quoted[-1] == '\xa4');
    }
    kit_close(arena);
}

static gpupool_arena *create(gpupool_source source, size_t limit_bytes) {
    gpupool_arena_config config = kit_config(source, limit_bytes);
    return kit_create(&config);
}

/* As numbers: up to 2^46; and less than a granule holds for sources whose chunks may be smaller. */
static void numbers(void) {
    gpupool_arena *arena = create(GPUPOOL_SOURCE_DEVICE, MIB);
    kit_use(arena, 1000 * KIB, A);
    CHECK_RESULT(gpupool_set_limit(arena, (size_t)1 << 46), GPUPOOL_OK);
    kit_close(arena);
}

static void limit_is(gpupool_arena *arena, uint64_t limit) {
    CHECK_EQ(kit_stats(arena).limit, limit);
    kit_close(arena);
}

static void set(const char *name, const char *value) {
    if (value) setenv(name, value, 1);
    else unsetenv(name);
}

#define MACRO ((uint64_t)GPUPOOL_LIMIT)
#define IN_FORCE(bytes) (GPUPOOL_ENVIRONMENT ? (uint64_t)(bytes) : MACRO)

/* The config, else the variable of the device, else the variable, else the macro. */
static void the_environment(void) {
    limit_is(create(GPUPOOL_SOURCE_AUTO, 0), MACRO);
    set("GPUPOOL_LIMIT", "1GiB");
    limit_is(create(GPUPOOL_SOURCE_AUTO, 0), IN_FORCE(GIB));
    set("GPUPOOL_LIMIT_0", "2GiB");
    set("GPUPOOL_LIMIT_1", "3GiB");
    limit_is(create(GPUPOOL_SOURCE_AUTO, 0), IN_FORCE(2 * GIB));
    limit_is(create(GPUPOOL_SOURCE_AUTO, 64 * MIB), 64 * MIB);
    limit_is(create(GPUPOOL_SOURCE_PINNED, 0), MACRO); /* which is not the device's memory */
    limit_is(gpupool_get_default_arena(0), IN_FORCE(2 * GIB));
    set("GPUPOOL_LIMIT_0", "");
    limit_is(create(GPUPOOL_SOURCE_AUTO, 0), IN_FORCE(GIB));
    set("GPUPOOL_LIMIT", "0");
    limit_is(create(GPUPOOL_SOURCE_AUTO, 0), IN_FORCE(0));
    set("GPUPOOL_LIMIT", NULL);
    set("GPUPOOL_LIMIT_0", NULL);
    set("GPUPOOL_LIMIT_1", NULL);
    limit_is(create(GPUPOOL_SOURCE_AUTO, 0), MACRO);
}

/* A chunk of mapped memory has a handle; in a case of its own, a name in any case. */
static int chunk_handles;
static int count_handles(const gpupool_mapping *mapping, void *user) {
    (void)user;
    chunk_handles += mapping->handle != 0;
    return 0;
}

static int is_mapped(const char *text, gpupool_source source) {
    gpupool_arena_config config = kit_config(source, 0);
    gpupool_arena *arena;
    set("GPUPOOL_SOURCE", text);
    config.on_map = count_handles;
    chunk_handles = 0;
    arena = kit_create(&config);
    kit_free(arena, gpupool_alloc(arena, 1000, A), A);
    kit_close(arena);
    set("GPUPOOL_SOURCE", NULL);
    return chunk_handles > 0;
}

static void sources(void) {
    int by_macro = GPUPOOL_SOURCE == GPUPOOL_SOURCE_AUTO;
    CHECK_EQ(is_mapped(NULL, GPUPOOL_SOURCE_AUTO), by_macro);
    CHECK_EQ(is_mapped("", GPUPOOL_SOURCE_AUTO), by_macro);
    CHECK_EQ(is_mapped("DEVICE", GPUPOOL_SOURCE_AUTO), !GPUPOOL_ENVIRONMENT && by_macro);
    CHECK_EQ(is_mapped("Bypass", GPUPOOL_SOURCE_AUTO), !GPUPOOL_ENVIRONMENT && by_macro);
    CHECK_EQ(is_mapped("managed", GPUPOOL_SOURCE_AUTO), !GPUPOOL_ENVIRONMENT && by_macro);
    CHECK_EQ(is_mapped("pinned", GPUPOOL_SOURCE_AUTO), !GPUPOOL_ENVIRONMENT && by_macro);
    CHECK_EQ(is_mapped("mapped", GPUPOOL_SOURCE_AUTO), GPUPOOL_ENVIRONMENT || by_macro);
    CHECK_EQ(is_mapped("auto", GPUPOOL_SOURCE_AUTO), GPUPOOL_ENVIRONMENT || by_macro);
    CHECK_EQ(is_mapped("device", GPUPOOL_SOURCE_MAPPED), 1); /* the config has said it */
}

#if GPUPOOL_ENVIRONMENT
/* What is wrong there is told with the variable's name. */
static void wrong_environment(void) {
    gpupool_arena *arena = NULL;
    void *block = NULL;
    set("GPUPOOL_LIMIT_0", "some\n");
    KIT_REFUSES(gpupool_arena_create(&arena, NULL), GPUPOOL_E_ARGUMENT,
                "GPUPOOL_LIMIT_0: \"some\\x0a\"");
    set("GPUPOOL_LIMIT_0", NULL);
    set("GPUPOOL_LIMIT", "65TiB");
    KIT_FAILS(gpupool_get_default_arena(0), GPUPOOL_E_ARGUMENT,
              "GPUPOOL_LIMIT: \"65TiB\" is more than 2^46");
    CHECK_EQ(gpupool_cudaMalloc(&block, 1000), cudaErrorInvalidValue);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    set("GPUPOOL_LIMIT", NULL);
    set("GPUPOOL_SOURCE", "quantum\tleap");
    KIT_REFUSES(gpupool_arena_create(&arena, NULL), GPUPOOL_E_ARGUMENT, "\"quantum\\x09leap\"");
    set("GPUPOOL_SOURCE", "custom"); /* needs functions */
    KIT_REFUSES(gpupool_arena_create(&arena, NULL), GPUPOOL_E_ARGUMENT, "GPUPOOL_SOURCE");
    set("GPUPOOL_SOURCE", NULL);
    CHECK(!arena && !block);
}
#endif

int main(void) {
    if (!GPUPOOL_LIMIT) {
        KIT_TEST(texts);
        KIT_TEST(wrong_texts);
        KIT_TEST(numbers);
    }
    KIT_TEST(the_environment);
    KIT_TEST(sources);
#if GPUPOOL_ENVIRONMENT
    if (!GPUPOOL_LIMIT) KIT_TEST(wrong_environment);
#endif
    return check_finish();
}
