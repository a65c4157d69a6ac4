/* What a verdict advises helps: 10,000 requests that fail in random arenas, and what it says done
   to the letter. */
#include "gpupool.h"
#include "kit.h"

#if CHECK_FAKE
#include "scene.h"

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
    static const char *const names[] = {"",           "LIMIT",   "DEVICE_FULL", "OTHERS",
                                        "FRAGMENTED", "PENDING", "HOST"};
    scene s;
    for (int round = 0; tally.failures < 10000; round++) {
        check_case("round %d", round);
        scene_seed = (uint64_t)round + 1;
        scene_open(&s, (gpupool_source)(GPUPOOL_SOURCE_MAPPED + (round % 4 ? 0 : scene_random(6))));
        fake_mode(round % 2 ? FAKE_STEPPED : FAKE_EAGER);
        for (int step = 0; step < 120; step++) {
            scene_step(&s);
            if (step > 10 && step % 2) follow_advice(&s);
        }
        scene_close(&s);
    }
    printf("    %d failures: %d raised limits, %d frees, %d largest requests\n", tally.failures,
           tally.raised, tally.freed, tally.largest);
    for (int i = GPUPOOL_CAUSE_LIMIT; i <= GPUPOOL_CAUSE_HOST; i++) {
        printf("    %s %d\n", names[i], tally.causes[i]);
        CHECK(tally.causes[i] > 50);
    }
    CHECK(tally.raised > 1000 && tally.freed > 1000 && tally.largest > 1000);
}

int main(void) {
    KIT_TEST(advice_helps);
    return check_finish();
}
#else
int main(void) {
    check_skip("advice_helps", "needs fakecuda's controls");
    return check_finish();
}
#endif
