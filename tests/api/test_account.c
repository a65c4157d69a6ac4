/* The figures and pictures of an arena: laws that hold at every moment, and well-formed output. */
#include "gpupool.h"
#include "arena_kit.h"

#include <ctype.h>

/* ---- laws of the statistics ---- */

static void counter_law(gpupool_counter c, const char *name) {
    if (c.peak < c.now || c.total < c.peak)
        check_fail(__FILE__, __LINE__, "%s: now %llu, peak %llu, total %llu", name,
                   (unsigned long long)c.now, (unsigned long long)c.peak,
                   (unsigned long long)c.total);
}

/* Order k holds sizes of 2^k to 2^(k+1) - 1 units, so counts by order bound the bytes. */
static void order_law(const uint64_t *by_order, uint64_t runs, uint64_t least, uint64_t most) {
    uint64_t count = 0, low = 0;
    for (int k = 0; k < GPUPOOL_ORDERS; k++) {
        count += by_order[k];
        low += (by_order[k] << k) * 512;
    }
    if (runs != UINT64_MAX) CHECK_EQ(count, runs);
    CHECK(low <= most);
    CHECK(least <= 2 * low);
}

static void stats_laws(gpupool_arena *arena) {
    gpupool_stats s = kit_stats(arena);
    CHECK_EQ(s.struct_bytes, sizeof s);
    counter_law(s.requested, "requested");
    counter_law(s.granted, "granted");
    counter_law(s.reserved, "reserved");
    counter_law(s.pending, "pending");
    counter_law(s.blocks, "blocks");
    CHECK(s.requested.now <= s.granted.now);
    CHECK(s.granted.now <= s.reserved.now);
    CHECK(s.pending.now <= s.reserved.now - s.granted.now);
    CHECK(s.granted.now < s.requested.now + 512 * (s.blocks.now + 1));
    if (s.limit_bytes) CHECK(s.reserved.now <= s.limit_bytes);
    CHECK_EQ(s.limit_bytes, kit_limit(arena));
    CHECK_EQ(s.allocs - s.frees, s.blocks.now);
    CHECK_EQ(s.blocks.total, s.allocs);
    CHECK(s.largest_free_bytes <= s.reserved.now - s.granted.now);
    order_law(s.live_by_order, s.blocks.now, s.granted.now, s.granted.now);
    order_law(s.free_by_order, UINT64_MAX, s.largest_free_bytes, s.reserved.now - s.granted.now);
}

static void laws_from(gpupool_source source, uint64_t seed) {
    gpupool_arena *arena = kit_open_limited(source, 512 * MIB);
    void *block[64] = {NULL};
    size_t size[64] = {0};
    uint64_t random = seed, requested = 0, live = 0, peak = 0;
    for (int step = 0; step < 3000; step++) {
        check_case("source %d, seed %llu, step %d", (int)source, (unsigned long long)seed, step);
        size_t i = (size_t)check_below(&random, 64);
        if (block[i]) {
            CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[i % 4]), GPUPOOL_OK);
            block[i] = NULL;
            requested -= size[i];
            live--;
        } else {
            size[i] = (size_t)check_below(&random, (uint64_t)1 << (1 + check_below(&random, 22)));
            size[i]++;
            block[i] = kit_alloc(arena, size[i], kit_stream[i % 4]);
            requested += size[i];
            live++;
        }
        if (requested > peak) peak = requested;
        if (step % 16 == 0) stats_laws(arena);
    }
    gpupool_stats s = kit_stats(arena);
    CHECK_EQ(s.requested.now, requested);
    CHECK_EQ(s.requested.peak, peak);
    CHECK_EQ(s.blocks.now, live);
    CHECK_EQ(s.failures, 0);
    for (size_t i = 0; i < 64; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[i % 4]), GPUPOOL_OK);
    stats_laws(arena);
    kit_close(arena);
}

static void laws_hold_at_every_moment(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++)
        laws_from(kit_sources[i].source, 1000 + (uint64_t)i);
}

/* A cache has not told of a free yet when a block of another size comes: the two were never live at
   the same time. */
static void peaks_know_what_caches_took_back(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, 4096, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    block = kit_alloc(arena, 4096, kit_stream[0]);
    CHECK_EQ(kit_stats(arena).requested.now, 4096);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    block = kit_alloc(arena, 16384, kit_stream[0]);
    CHECK_EQ(kit_stats(arena).requested.peak, 16384);
    CHECK_EQ(kit_stats(arena).blocks.peak, 1);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

static void reset_peaks_sets_them_to_now(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *large = kit_alloc(arena, 9 * MIB, kit_stream[0]);
    void *small = kit_alloc(arena, 700, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, large, kit_stream[0]), GPUPOOL_OK);
    gpupool_stats before = kit_stats(arena);
    CHECK_EQ(before.requested.peak, 9 * MIB + 700);
    CHECK_EQ(before.blocks.peak, 2);
    CHECK_RESULT(gpupool_reset_peaks(arena), GPUPOOL_OK);
    gpupool_stats after = kit_stats(arena);
    CHECK_EQ(after.requested.peak, 700);
    CHECK_EQ(after.granted.peak, 1024);
    CHECK_EQ(after.reserved.peak, after.reserved.now);
    CHECK_EQ(after.pending.peak, after.pending.now);
    CHECK_EQ(after.blocks.peak, 1);
    CHECK_EQ(after.requested.total, before.requested.total);
    CHECK_RESULT(gpupool_free(arena, small, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- report and picture ---- */

static char *all_of(FILE *file) {
    size_t size = 0, room = 1 << 16;
    char *text = (char *)malloc(room + 1);
    rewind(file);
    for (size_t got; (got = fread(text + size, 1, room - size, file)) > 0;) {
        size += got;
        if (size == room) text = (char *)realloc(text, (room *= 2) + 1);
    }
    text[size] = 0;
    return text;
}

/* Walks tags and entities as an XML reader would; returns why the text is no document, or NULL. */
static const char *xml_fault(const char *at) {
    char open[64][32];
    size_t depth = 0, elements = 0;
    for (; *at; at++) {
        if (*at == '&') {
            size_t n = 1 + strspn(at + 1, "#abcdefghijklmnopqrstuvwxyz0123456789");
            if (n < 2 || at[n] != ';') return "a bare ampersand";
            continue;
        }
        if (*at != '<') continue;
        const char *end = strchr(at, '>');
        if (!end) return "a tag that does not end";
        if (at[1] == '?' || at[1] == '!') continue;
        int closing = at[1] == '/';
        const char *name = at + 1 + closing;
        size_t length = strcspn(name, " \t\r\n/>");
        if (!length || length >= sizeof open[0]) return "a tag without a name";
        if (memchr(at + 1, '<', (size_t)(end - at - 1))) return "a < inside a tag";
        size_t quotes = 0;
        for (const char *q = at; q < end; q++) quotes += *q == '"';
        if (quotes % 2) return "an open quote";
        if (closing) {
            if (!depth || strncmp(open[depth - 1], name, length) || open[depth - 1][length])
                return "a closing tag that nothing opened";
            depth--;
        } else if (end[-1] != '/') {
            if (depth == 64) return "64 levels of tags";
            memcpy(open[depth], name, length);
            open[depth++][length] = 0;
        }
        elements++;
        at = end;
    }
    return depth ? "a tag that stays open" : elements ? NULL : "no tags";
}

/* An arena with live, free and pending memory, under a name that needs escaping. */
static gpupool_arena *busy_arena(gpupool_source source, void **block) {
    gpupool_arena_config config = kit_config(source);
    config.name = "Ann & <Bob> \"C\"";
    gpupool_arena *arena = kit_create(&config);
    for (size_t i = 0; i < 40; i++)
        block[i] = kit_alloc(arena, (size_t)3 << (i % 23), kit_stream[i % 4]);
    for (size_t i = 0; i < 40; i += 3) {
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[i % 4]), GPUPOOL_OK);
        block[i] = NULL;
    }
    return arena;
}

static void output_is_well_formed(void) {
    for (size_t i = 0; i < KIT_SOURCES; i++) {
        check_case("%s", kit_sources[i].name);
        void *block[40];
        gpupool_arena *arena = busy_arena(kit_sources[i].source, block);
        FILE *table = tmpfile(), *picture = tmpfile();
        gpupool_stats before = kit_stats(arena);
        CHECK_RESULT(gpupool_report(arena, table), GPUPOOL_OK);
        CHECK_RESULT(gpupool_write_svg(arena, picture), GPUPOOL_OK);
        CHECK(kit_same_stats(before, kit_stats(arena)));
        char *text = all_of(table), *svg = all_of(picture);
        CHECK(strlen(text) > 100 && text[strlen(text) - 1] == '\n');
        CHECK(strstr(text, "Ann & <Bob> \"C\"") != NULL);
        for (char *c = text; *c; c++) *c = (char)tolower((unsigned char)*c);
        CHECK(strstr(text, "reserved") != NULL);
        CHECK(strstr(svg, "<svg") != NULL && strstr(svg, "</svg>") != NULL);
        CHECK(strstr(svg, "xmlns=\"http://www.w3.org/2000/svg\"") != NULL);
        const char *fault = xml_fault(svg);
        if (fault) check_fail(__FILE__, __LINE__, "the picture has %s", fault);
        for (size_t b = 0; b < 40; b++)
            CHECK_RESULT(gpupool_free(arena, block[b], kit_stream[b % 4]), GPUPOOL_OK);
        kit_close(arena);
        free(text);
        free(svg);
        fclose(table);
        fclose(picture);
    }
}

static void empty_arena_can_be_drawn(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    FILE *table = tmpfile(), *picture = tmpfile();
    CHECK_RESULT(gpupool_report(arena, table), GPUPOOL_OK);
    CHECK_RESULT(gpupool_write_svg(arena, picture), GPUPOOL_OK);
    char *text = all_of(table), *svg = all_of(picture);
    CHECK(text[0] != 0);
    CHECK(xml_fault(svg) == NULL);
    free(text);
    free(svg);
    fclose(table);
    fclose(picture);
    kit_close(arena);
}

static void a_full_disk_is_reported(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    FILE *full = fopen("/dev/full", "w");
    CHECK(full != NULL);
    if (full) {
        CHECK(gpupool_report(arena, full) != GPUPOOL_OK);
        CHECK(gpupool_last_error()[0] != 0);
        CHECK(gpupool_write_svg(arena, full) != GPUPOOL_OK);
        fclose(full);
    }
    kit_close(arena);
}

/* ---- words ---- */

static void every_result_has_its_own_name(void) {
    for (int a = 0; a < CHECK_CODES; a++) {
        const char *name = gpupool_result_name((gpupool_result)a);
        CHECK(name != NULL && name[0] != 0);
        for (int b = 0; b < a; b++)
            CHECK(strcmp(name, gpupool_result_name((gpupool_result)b)) != 0);
    }
    CHECK(gpupool_result_name((gpupool_result)CHECK_CODES) != NULL);
    CHECK(gpupool_result_name((gpupool_result)12345) != NULL);
}

static void build_names_the_options(void) {
    const char *build = gpupool_get_build();
    CHECK(strstr(build, "UNIT") != NULL || strstr(build, "unit") != NULL);
    CHECK(strstr(build, "512") != NULL);
}

/* 72 bytes a block and 64 a free run, in pages: neither far less nor far more. */
static void records_are_counted(void) {
    enum { LIVE = 5000 };
    static void *block[LIVE];
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    uint64_t before = kit_stats(arena).host_bytes, grown;
    for (int i = 0; i < LIVE; i++) block[i] = kit_alloc(arena, 1000, kit_stream[0]);
    grown = kit_stats(arena).host_bytes - before;
    CHECK(grown > LIVE * 64 && grown < LIVE * 200);
    for (int i = 0; i < LIVE; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

int main(void) {
    ARENA_TEST(laws_hold_at_every_moment);
    ARENA_TEST(peaks_know_what_caches_took_back);
    ARENA_TEST(reset_peaks_sets_them_to_now);
    ARENA_TEST(output_is_well_formed);
    ARENA_TEST(empty_arena_can_be_drawn);
    ARENA_TEST(a_full_disk_is_reported);
    ARENA_TEST(records_are_counted);
    TEST(every_result_has_its_own_name);
    TEST(build_names_the_options);
    return check_finish();
}
