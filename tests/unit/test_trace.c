/* The record of calls: what it says, and that the same calls in a fresh arena give the same
   addresses, counted from the arena's first. */
// build: plain -fsanitize=address
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"
#include <pthread.h>

#define LINE 512

static FILE *scratch(void) {
    FILE *file = tmpfile();
    if (file) return file;
    printf("no temporary file\n");
    exit(1);
}

#if CHECK_FAKE

/* ---- random work of every kind that a record knows ---- */

#define SLOTS 64

typedef struct slot {
    void *block;
    uint64_t id;
} slot;

static slot slots[SLOTS];
static uint64_t in_vain; /* what was asked for so changes the arena too */
static uint64_t stitched;

static void one_call(gpupool_arena *arena, uint64_t *random) {
    slot *s = &slots[check_below(random, SLOTS)];
    cudaStream_t stream = check_below(random, 5) ? kit_stream[check_below(random, 3)] : 0;
    uint64_t what = check_below(random, 200);
    size_t bytes = 1 + (size_t)check_below(random, (uint64_t)1 << (9 + check_below(random, 14)));
    if (what == 0) CHECK_RESULT(gpupool_trim(arena, check_below(random, 64) * MIB, NULL), 0);
    else if (what == 1) CHECK_RESULT(gpupool_set_limit(arena, 48 * MIB), GPUPOOL_OK);
    else if (what == 2) CHECK_RESULT(gpupool_set_limit(arena, 64 * MIB), GPUPOOL_OK);
    else if (what == 3) CHECK_RESULT(gpupool_retire_stream(arena, stream), GPUPOOL_OK);
    else if (what == 4) kit_stats(arena);
    else if (what == 5) kit_fits(arena, bytes, NULL);
    else if (what == 6 && s->block) CHECK(kit_size(arena, s->block) > 0);
    else if (what == 7) CHECK_RESULT(gpupool_free(arena, s, stream), GPUPOOL_E_NOT_OURS);
    else if (what < 12 && s->block)
        CHECK_RESULT(gpupool_record_stream(arena, s->block, stream), GPUPOOL_OK);
    else if (s->block) {
        CHECK_RESULT(gpupool_free(arena, s->block, stream), GPUPOOL_OK);
        s->block = NULL;
    } else if (what < 30) {
        size_t alignment = (size_t)1 << check_below(random, 20);
        s->block = gpupool_alloc_aligned(arena, bytes, alignment, stream);
    } else s->block = gpupool_alloc(arena, what < 40 ? 32 * bytes : bytes, stream);
}

static void record(FILE *file, uint64_t seed, int steps) {
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    CHECK_RESULT(gpupool_set_trace(arena, file), GPUPOOL_OK);
    while (steps--) one_call(arena, &seed);
    in_vain += kit_stats(arena).failures;
    stitched += kit_stats(arena).stitches;
    for (size_t i = 0; i < SLOTS; i++) {
        CHECK_RESULT(gpupool_free(arena, slots[i].block, kit_stream[0]), GPUPOOL_OK);
        slots[i].block = NULL;
    }
    CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- the same again, from the lines ---- */

static slot *slot_of(uint64_t id) {
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].block && slots[i].id == id) return &slots[i];
    return NULL;
}

static void replay_block(gpupool_arena *arena, uint64_t id, void *block) {
    uint64_t unit = (uint64_t)(uintptr_t)block / GPUPOOL_UNIT_BYTES - arena->chunks.base_unit;
    size_t i = 0;
    CHECK_EQ(unit, id);
    while (i < SLOTS && slots[i].block) i++;
    if (!CHECK(i < SLOTS)) return;
    slots[i] = (slot){block, id};
}

static void replay_line(gpupool_arena *arena, const char *line) {
    unsigned long long a = 0, b = 0, c = 0, d = 512;
    int n = sscanf(line + 1, "%llu %llu %llu %llu", &a, &b, &c, &d);
    cudaStream_t last = (cudaStream_t)(uintptr_t)(n >= 3 ? c : b);
    slot *s = strchr("fu", line[0]) ? slot_of(a) : NULL;
    switch (line[0]) {
    case '#': return;
    case 'a': replay_block(arena, a, gpupool_alloc_aligned(arena, b, d, last)); return;
    case 'o':
        CHECK(gpupool_alloc_aligned(arena, a, n > 2 ? c : 512, (cudaStream_t)(uintptr_t)b) == NULL);
        return;
    case 't': CHECK_RESULT(gpupool_trim(arena, a, NULL), GPUPOOL_OK); return;
    case 'l': CHECK_RESULT(gpupool_set_limit(arena, a), GPUPOOL_OK); return;
    case 'r':
        CHECK_RESULT(gpupool_retire_stream(arena, (cudaStream_t)(uintptr_t)a), GPUPOOL_OK);
        return;
    default: break;
    }
    if (!CHECK(s != NULL && strchr("fu", line[0]))) return;
    if (line[0] == 'u') CHECK_RESULT(gpupool_record_stream(arena, s->block, last), GPUPOOL_OK);
    else CHECK_RESULT(gpupool_free(arena, s->block, last), GPUPOOL_OK);
    if (line[0] == 'f') s->block = NULL;
}

static void replaying_gives_the_same_addresses(void) {
    for (uint64_t seed = 1; seed <= 6; seed++) {
        char line[LINE];
        int lines = 0;
        FILE *file = scratch();
        record(file, seed, 6000);
        gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
        rewind(file);
        while (fgets(line, sizeof line, file)) {
            check_case("seed %llu, line %d", (unsigned long long)seed, ++lines);
            replay_line(arena, line);
        }
        CHECK(lines > 5000);
        fclose(file);
        kit_close(arena);
    }
    CHECK(in_vain > 5 && stitched > 5);
}

#endif

/* ---- words ---- */

static void what_it_says(void) {
    char said[1024] = "", expected[512];
    FILE *file = scratch();
    gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    void *early = kit_alloc(arena, 1000, 0);
    CHECK_RESULT(gpupool_set_trace(arena, file), GPUPOOL_OK);
    void *plain = kit_alloc(arena, 512, kit_stream[0]);
    void *block = gpupool_alloc_aligned(arena, 5000, 4096, kit_stream[0]);
    CHECK_RESULT(gpupool_record_stream(arena, block, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, 4096, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_retire_stream(arena, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, early, 0), GPUPOOL_OK); /* no longer recorded */
    CHECK_RESULT(gpupool_free(arena, plain, 0), GPUPOOL_OK);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = 0;
    unsigned long long s = (unsigned long long)(uintptr_t)kit_stream[0];
    snprintf(expected, sizeof expected,
             "\na 0 1000 0\na 2 512 %llu\na 8 5000 %llu 4096\nu 8 0\nf 8 %llu\nt 4096\nl 0\nr 0\n",
             s, s, s);
    CHECK(strncmp(said, "# gpupool trace 1: source mapped, unit 512, limit 67108864,", 59) == 0);
    const char *rest = strchr(said, '\n');
    if (!CHECK(rest && strcmp(rest, expected) == 0)) printf("%s", said);
    fclose(file);
    kit_close(arena);
}

/* One that was refused has put memory in order, as a look at the block does, and no more. */
static void a_use_that_is_refused_is_no_line(void) {
    char said[1024] = "";
    FILE *file = scratch();
    cudaGraph_t graph;
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    CHECK_RESULT(gpupool_set_trace(arena, file), GPUPOOL_OK);
    void *block = kit_alloc(arena, 1000, 0);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeRelaxed), cudaSuccess);
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[0]), GPUPOOL_E_CAPTURING);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = 0;
    CHECK(strstr(said, ", limit 0, ") != NULL); /* there is none */
    const char *rest = strchr(said, '\n');
    if (!CHECK(rest && strcmp(rest, "\na 0 1000 0\nf 0 0\n") == 0)) printf("%s", said);
    fclose(file);
    kit_close(arena);
}

/* A block that a stream's cache has free is not live: a record begun then does not list it, and
   lists it when it is had again. */
static void a_late_record_lists_no_free_block(void) {
    char said[1024] = "";
    FILE *file = scratch();
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_MAPPED);
    void *kept = kit_alloc(arena, 1000, 0), *freed = kit_alloc(arena, 1000, 0);
    CHECK(kept != freed);
    CHECK_RESULT(gpupool_free(arena, freed, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_trace(arena, file), GPUPOOL_OK);
    CHECK(kit_alloc(arena, 1000, 0) == freed);
    CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = 0;
    const char *rest = strchr(said, '\n');
    if (!CHECK(rest && strcmp(rest, "\na 0 1000 0\na 2 1000 0\n") == 0)) printf("%s", said);
    fclose(file);
    CHECK_RESULT(gpupool_free(arena, kept, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, freed, 0), GPUPOOL_OK);
    kit_close(arena);
}

#if CHECK_FAKE
/* Where nothing could be mapped, chunks have addresses of their own: they are counted from 0. */
static void numbers_where_nothing_is_mapped(void) {
    char line[LINE] = "", expected[LINE];
    FILE *file = scratch();
    fake_fail_call("cuMemMap", 1, 1, CUDA_ERROR_NOT_SUPPORTED);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    fake_fail_clear();
    CHECK_RESULT(gpupool_set_trace(arena, file), GPUPOOL_OK);
    void *block = kit_alloc(arena, 1000, 0);
    CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK);
    snprintf(expected, sizeof expected, "a %llu 1000 0\n",
             (unsigned long long)((uintptr_t)block / GPUPOOL_UNIT_BYTES));
    rewind(file);
    while (fgets(line, sizeof line, file) && line[0] == '#') continue;
    if (!CHECK(strcmp(line, expected) == 0)) printf("%s", line);
    fclose(file);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    kit_close(arena);
}
#endif

/* A record begun late begins with the blocks that are live, of whatever size. */
static void a_late_record_lists_what_is_live(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    FILE *file = scratch();
    char line[200];
    void *block[40];
    int lines = 0;
    for (int i = 0; i < 40; i++)
        block[i] = kit_alloc(arena, (size_t)700 << i % 10, kit_stream[i % 2]);
    CHECK_RESULT(gpupool_set_trace(arena, file), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK);
    rewind(file);
    while (fgets(line, sizeof line, file)) lines += line[0] == 'a' && line[1] == ' ';
    CHECK_EQ(lines, 40);
    fclose(file);
    for (int i = 0; i < 40; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[i % 2]), GPUPOOL_OK);
    kit_close(arena);
}

/* They change nothing, so who replays the record has no need of them. */
static void calls_that_only_look_are_not_recorded(void) {
    void *block[2];
    FILE *file = scratch(), *paper = scratch();
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(gpupool_set_trace(arena, file), GPUPOOL_OK);
    for (int i = 0; i < 2; i++) block[i] = kit_alloc(arena, 4096, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block[0], kit_stream[0]), GPUPOOL_OK);
    fflush(file);
    long at = ftell(file);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    CHECK_RESULT(gpupool_end_phase(arena, NULL), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_set_limit_text(arena, "much"), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_allow_peer(arena, 0), GPUPOOL_E_ARGUMENT);
    CHECK(kit_available(arena) > 0);
    CHECK_EQ(kit_fits(arena, 4096, NULL), 1);
    CHECK_EQ(kit_limit(arena), 0);
    CHECK_EQ(kit_size(arena, &block), 0);
    CHECK_RESULT(gpupool_report(arena, paper), GPUPOOL_OK);
    CHECK_EQ(kit_size(arena, block[1]), 4096);
    CHECK_RESULT(gpupool_free(arena, &block, kit_stream[0]), GPUPOOL_E_NOT_OURS);
    CHECK_EQ(ftell(file), at);
    CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK);
    CHECK_RESULT(gpupool_free(arena, block[1], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
    fclose(file);
    fclose(paper);
}

#if CHECK_FAKE
static void a_limit_that_fails_is_taken_back(void) {
    static const size_t limits[] = {64 * MIB, 0};
    for (size_t i = 0; i < KIT_COUNT(limits); i++) {
        char line[LINE], last[LINE] = "", expected[LINE];
        FILE *file = scratch();
        gpupool_arena *arena = kit_open_limited(GPUPOOL_SOURCE_DEVICE, limits[i]);
        snprintf(expected, sizeof expected, "l %zu\n", limits[i]);
        CHECK_RESULT(gpupool_set_trace(arena, file), GPUPOOL_OK);
        CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, 4 * MIB, 0), 0), GPUPOOL_OK);
        fake_fail_call("cuMemFree", 1, 0, 0);
        CHECK_RESULT(gpupool_set_limit(arena, MIB), GPUPOOL_E_CUDA);
        CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK);
        CHECK_EQ(kit_limit(arena), limits[i]);
        rewind(file);
        while (fgets(line, sizeof line, file))
            if (line[0] == 'l') memcpy(last, line, sizeof last);
        CHECK(strcmp(last, expected) == 0);
        kit_close(arena);
        fclose(file);
    }
}
#endif

/* With the streams of the calls, though cudaFree has none. */
static void a_bypass_records_streams(void) {
    char said[1024] = "";
    unsigned long long s[2], streams[2] = {1, 1};
    FILE *file = scratch();
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_BYPASS);
    CHECK_RESULT(gpupool_set_trace(arena, file), GPUPOOL_OK);
    for (int i = 0; i < 2; i++) s[i] = (unsigned long long)(uintptr_t)kit_stream[i];
    void *block = kit_alloc(arena, 1000, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = 0;
    int lines = sscanf(strchr(said, '\n'), "\na %*u 1000 %llu\nf %*u %llu", &streams[0],
                       &streams[1]);
    CHECK_EQ(lines, 2);
    CHECK_EQ(streams[0], s[0]);
    CHECK_EQ(streams[1], s[1]);
    kit_close(arena);
    fclose(file);
}

static void a_full_disk_is_told(void) {
    FILE *full = fopen("/dev/full", "w"), *file = scratch();
    if (!full) return;
    setvbuf(full, NULL, _IONBF, 0);
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(gpupool_set_trace(NULL, full), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK); /* there is nothing to stop */
    CHECK_RESULT(gpupool_set_trace(arena, full), GPUPOOL_OK);
    void *block = kit_alloc(arena, 1000, 0);
    CHECK_RESULT(gpupool_set_trace(arena, file), GPUPOOL_E_FILE); /* but goes on, elsewhere */
    CHECK(strstr(gpupool_last_error(), "cannot be written: something before") != NULL);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_set_trace(arena, NULL), GPUPOOL_OK);
    CHECK(ftell(file) > 0);
    kit_close(arena);
    fclose(full);
    fclose(file);
}

/* ---- several threads ---- */

#define TURNS 10000

static gpupool_arena *shared;

static void *to_and_fro(void *stream) {
    for (int i = 0; i < TURNS; i++) {
        void *block = gpupool_alloc(shared, 4096, (cudaStream_t)stream);
        gpupool_free(shared, block, (cudaStream_t)stream);
    }
    return NULL;
}

/* Lines are whole, and a block that is had was free. */
static void threads_take_turns(void) {
    enum { IDS = 1024 };
    static char live[IDS];
    pthread_t thread[KIT_STREAMS];
    FILE *file = scratch();
    char line[512];
    long lines = 0, wrong = 0;
    memset(live, 0, sizeof live);
    shared = kit_open(GPUPOOL_SOURCE_AUTO);
    CHECK_RESULT(gpupool_set_trace(shared, file), GPUPOOL_OK);
    for (int i = 0; i < KIT_STREAMS; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, to_and_fro, kit_stream[i]), 0);
    for (int i = 0; i < KIT_STREAMS; i++) CHECK_EQ(pthread_join(thread[i], NULL), 0);
    CHECK_RESULT(gpupool_set_trace(shared, NULL), GPUPOOL_OK);
    rewind(file);
    while (fgets(line, sizeof line, file)) {
        unsigned long long id = 0, stream;
        int is_new = line[0] == 'a', end = 0;
        if (line[0] == '#') continue;
        lines++;
        if (sscanf(line, is_new ? "a %llu 4096 %llu%n" : "f %llu %llu%n", &id, &stream, &end) < 2 ||
            strcmp(line + end, "\n") != 0 || id >= IDS || live[id] == is_new)
            wrong++;
        else
            live[id] = (char)is_new;
    }
    CHECK_EQ(lines, 2 * TURNS * KIT_STREAMS);
    CHECK_EQ(wrong, 0);
    fclose(file);
    kit_close(shared);
}

int main(void) {
    FAKE_TEST(replaying_gives_the_same_addresses);
    ARENA_TEST(what_it_says);
    ARENA_TEST(a_use_that_is_refused_is_no_line);
    FAKE_TEST(numbers_where_nothing_is_mapped);
    ARENA_TEST(a_late_record_lists_what_is_live);
    ARENA_TEST(a_late_record_lists_no_free_block);
    ARENA_TEST(calls_that_only_look_are_not_recorded);
    FAKE_TEST(a_limit_that_fails_is_taken_back);
    ARENA_TEST(a_bypass_records_streams);
    ARENA_TEST(a_full_disk_is_told);
    ARENA_TEST(threads_take_turns);
    return check_finish();
}
