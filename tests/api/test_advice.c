/* In random arenas of every source: what a verdict advises helps, done to the letter, and what
   gpupool_get_available says is granted. */
#include "gpupool.h"
#include "kit.h"

#if CHECK_FAKE
#include "scene.h"

/* An arena of one of the six sources from MAPPED on; in every second round work is delayed. */
static void begin(scene *s, int round, int source) {
    check_case("round %d", round);
    scene_seed = (uint64_t)round + 1;
    fake_mode(round % 2 ? FAKE_STEPPED : FAKE_EAGER);
    scene_open(s, (gpupool_source)(GPUPOOL_SOURCE_MAPPED + source));
}

/* ---- what is advised ---- */

static struct { int failures, raised, freed, largest, causes[GPUPOOL_CAUSE_HOST + 1]; } tally;

/* The bytes that a sentence names behind some words; 0: it has no such words. */
static size_t figure_behind(const char *sentence, const char *words) {
    const char *at = strstr(sentence, words);
    char unit[8] = "";
    double number;
    if (!at || sscanf(at + strlen(words), "%lf %7[A-Za-z]", &number, unit) != 2) return 0;
    switch (unit[0]) {
    case 'K': number *= 1 << 10; break;
    case 'M': number *= 1 << 20; break;
    case 'G': number *= 1 << 30; break;
    case 'T': number *= 1099511627776.; break;
    default: break;
    }
    return (size_t)number + ((double)(size_t)number < number);
}

static void is_one_sentence(const gpupool_verdict *v) {
    size_t length = strlen(v->sentence);
    CHECK(length > 30 && length + 1 < sizeof v->sentence);
    CHECK(strstr(v->sentence, " does not fit"));
    CHECK(strstr(v->sentence, ": "));
    CHECK(!strpbrk(v->sentence, "\n%"));
    CHECK_EQ(v->asked > 0, 1);
    CHECK(v->cause > GPUPOOL_CAUSE_NONE && v->cause <= GPUPOOL_CAUSE_HOST);
    tally.causes[v->cause]++;
}

static int tells_what_it_has(const scene *s) {
    return s->source == GPUPOOL_SOURCE_MAPPED || s->source == GPUPOOL_SOURCE_DEVICE ||
           s->source == GPUPOOL_SOURCE_BYPASS;
}

/* The limit raised by the field, or as the sentence says it. */
static void raise_helps(scene *s, const gpupool_request *request, const gpupool_verdict *v) {
    size_t by = figure_behind(v->sentence, " or raise the limit by ");
    void *block;
    if (!by) by = figure_behind(v->sentence, ": raise the limit by ");
    CHECK_EQ(by > 0, v->missing > 0);
    if (!v->missing) return;
    CHECK(by >= v->missing && by - v->missing <= v->missing / 50 + 1);
    if (scene_random(2)) by = (size_t)v->missing;
    CHECK_RESULT(gpupool_set_limit(s->arena, v->limit + by), GPUPOOL_OK);
    block = gpupool_alloc_request(s->arena, request);
    if (!block && tells_what_it_has(s))
        check_fail(__FILE__, __LINE__, "a limit raised by %zu, and then: %s, but before: %s", by,
                   gpupool_last_error(), v->sentence);
    tally.raised += block != NULL;
    if (block) kit_free(s->arena, block, request->stream);
    CHECK_RESULT(gpupool_set_limit(s->arena, v->limit), GPUPOOL_OK);
}

static void largest_fits(scene *s, const gpupool_request *request, const gpupool_verdict *v) {
    gpupool_request smaller = *request;
    void *block;
    if (!v->largest || v->largest > (uint64_t)1 << 46) return;
    smaller.bytes = v->largest;
    smaller.alignment = 0;
    block = gpupool_alloc_request(s->arena, &smaller);
    if (!block)
        check_fail(__FILE__, __LINE__, "%zu fits, says %s, but: %s", smaller.bytes, v->sentence,
                   gpupool_last_error());
    tally.largest += block != NULL;
    if (block) kit_free(s->arena, block, request->stream);
}

/* Freeing less than it says does not help. */
static void less_is_not_enough(scene *s, const gpupool_request *request, const gpupool_verdict *v) {
    uint64_t freed = 0;
    void *block;
    CHECK(v->to_free == 0 || v->largest < v->asked);
    while (s->count) {
        int which = (int)scene_random((uint32_t)s->count);
        gpupool_block about;
        CHECK_RESULT(gpupool_get_block(s->arena, s->blocks[which], &about), GPUPOOL_OK);
        freed += about.bytes;
        if (freed >= v->to_free) return;
        scene_free(s, which);
        block = gpupool_alloc_request(s->arena, request);
        tally.freed++;
        if (!block) continue;
        check_fail(__FILE__, __LINE__, "freeing %llu was enough, but: %s",
                   (unsigned long long)freed, v->sentence);
        kit_free(s->arena, block, request->stream);
    }
}

/* A request that may well fail. */
static gpupool_request large_request(void) {
    gpupool_request request = {scene_size() * (1 + scene_random(8)), 0, scene_stream(), 0, NULL};
    if (!scene_random(3)) request.flags = GPUPOOL_NO_WAIT;
    if (!scene_random(6)) request.flags |= GPUPOOL_OWN_CHUNK;
    if (!scene_random(4) && !(request.flags & GPUPOOL_OWN_CHUNK))
        request.alignment = (size_t)1 << scene_random(41);
    return request;
}

static void follow_advice(scene *s) {
    gpupool_request request = large_request();
    gpupool_verdict v;
    void *block = gpupool_alloc_request(s->arena, &request);
    if (block) {
        kit_free(s->arena, block, request.stream);
        return;
    }
    if (gpupool_last_result() != GPUPOOL_E_OUT_OF_MEMORY) return;
    v = *gpupool_last_verdict();
    tally.failures++;
    is_one_sentence(&v);
    if (scene_random(2)) raise_helps(s, &request, &v);
    else if (scene_random(2)) largest_fits(s, &request, &v);
    else if (!(request.flags & GPUPOOL_NO_WAIT)) less_is_not_enough(s, &request, &v);
}

static void advice_helps(void) {
    scene s;
    for (int round = 0; tally.failures < 10000; round++) {
        begin(&s, round, round % 4 ? 0 : round / 4 % 6);
        for (int step = 0; step < 120; step++) {
            scene_step(&s);
            if (step > 10 && step % 2) follow_advice(&s);
        }
        scene_close(&s);
    }
    printf("    %d failures: %d raised limits, %d frees, %d largest requests\n", tally.failures,
           tally.raised, tally.freed, tally.largest);
    for (int i = GPUPOOL_CAUSE_LIMIT; i <= GPUPOOL_CAUSE_HOST; i++) {
        check_case("cause %d", i);
        CHECK(tally.causes[i] > 50);
    }
    check_case("%s", "");
    CHECK(tally.raised > 1000 && tally.freed > 1000 && tally.largest > 1000);
}

/* ---- what is available ---- */

static size_t available(const scene *s, cudaStream_t stream) {
    size_t bytes = 77;
    CHECK_RESULT(gpupool_get_available(s->arena, stream, &bytes), GPUPOOL_OK);
    return bytes;
}

static struct { int granted, exact, more; } told;

/* So much is granted on the stream, and a byte more is not. MAPPED: hardly ever, by what several
   streams have freed side by side. */
static void ask_for_all(scene *s, cudaStream_t stream) {
    size_t bytes = available(s, stream);
    void *block;
    if (!bytes) return;
    block = gpupool_alloc(s->arena, bytes, stream);
    if (!block) check_fail(__FILE__, __LINE__, "%zu bytes: %s", bytes, gpupool_last_error());
    told.granted += block != NULL;
    if (block && !scene_random(3) && s->count < SCENE_BLOCKS) scene_keep(s, block, bytes, stream);
    else kit_free(s->arena, block, stream);
    block = gpupool_alloc(s->arena, available(s, stream) + 1, stream);
    told.exact += block == NULL;
    told.more += block && s->source == GPUPOOL_SOURCE_MAPPED;
    kit_free(s->arena, block, stream);
}

static void available_is_granted(void) {
    scene s;
    for (int round = 0; round < 480; round++) {
        begin(&s, round, round % 6);
        for (int step = 0; step < 60; step++) {
            scene_step(&s);
            if (step % 4 == 0) ask_for_all(&s, scene_stream());
        }
        scene_close(&s);
    }
    printf("    %d granted, %d not a byte more\n", told.granted, told.exact);
    CHECK(told.granted > 3000);
    CHECK(told.exact > 1000);
    CHECK(told.more * 200 < told.granted);
}

/* The limit went down, and what was reserved above it is free again: it is granted in one piece,
   but no new chunk is. */
static void below_what_is_reserved(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE, 0);
    void *blocks[4];
    scene s;
    config.chunk_bytes = 50 * MIB;
    s.arena = kit_create(&config);
    for (int i = 0; i < 4; i++) blocks[i] = gpupool_alloc(s.arena, 50 * MIB, kit_stream[0]);
    CHECK_RESULT(gpupool_set_limit(s.arena, 72 * MIB), GPUPOOL_OK);
    CHECK_EQ(available(&s, kit_stream[0]), 0);
    kit_free(s.arena, blocks[0], kit_stream[0]);
    CHECK_EQ(available(&s, kit_stream[0]), 50 * MIB);
    for (int i = 1; i < 4; i++) kit_free(s.arena, blocks[i], kit_stream[0]);
    CHECK_EQ(available(&s, kit_stream[0]), 72 * MIB); /* not 200 */
    kit_use(s.arena, 72 * MIB, kit_stream[0]);
    kit_close(s.arena);
}

int main(void) {
    KIT_TEST(advice_helps);
    KIT_TEST(available_is_granted);
    KIT_TEST(below_what_is_reserved);
    return check_finish();
}
#else
int main(void) {
    check_skip("advice", "needs fakecuda's controls");
    return check_finish();
}
#endif
