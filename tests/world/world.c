/* One random world: numbers from a seed become calls of an allocator, and a model with stamps and
   fakecuda's race oracle judge them.   world FIRST LAST [OPERATIONS]   runs these seeds. */
#include WORLD_ADAPTER
#include "fakecuda.h"

enum { STREAMS = 4, BLOCKS = 200, NOBODY = -1 };
typedef struct block {
    char *memory;
    uint64_t bytes;
    int home, other, stamp;
} block;
typedef struct world {
    uint64_t seed;
    world_arena *arena;
    cudaStream_t streams[STREAMS];
    block blocks[BLOCKS];
    const char *wrong;
} world;

static uint64_t draw(world *w, uint64_t below) {
    w->seed = w->seed * 6364136223846793005ull + 1442695040888963407ull;
    return (w->seed >> 33) % below;
}
static void expect(world *w, int holds, const char *what) {
    if (!holds && !w->wrong) w->wrong = what;
}

static void stamp(const world *w,
                  const block *b) { /* both ends: stitches lie over several chunks */
    uint64_t part = b->bytes > 4096 ? 4096 : b->bytes;
    fake_write(w->streams[b->home], "stamp", b->memory, part, b->stamp);
    fake_write(w->streams[b->home], "stamp", b->memory + b->bytes - part, part, b->stamp);
}
static void verify(const block *b, cudaStream_t stream) {
    uint64_t part = b->bytes > 4096 ? 4096 : b->bytes;
    fake_read(stream, "verify", b->memory, part, b->stamp);
    fake_read(stream, "verify", b->memory + b->bytes - part, part, b->stamp);
}
static void follow(cudaStream_t first, cudaStream_t then) {
    cudaEvent_t event;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, first);
    cudaStreamWaitEvent(then, event, 0);
    cudaEventDestroy(event);
}

static void do_alloc(world *w, block *b) {
    static const uint64_t most[] = {4096, 65536, 4u << 20, 40u << 20};
    uint64_t bytes = 1 + draw(w, most[draw(w, 4)]);
    uint64_t alignment = draw(w, 10) ? 1 : (uint64_t)1 << draw(w, 23);
    int is_short, home = (int)draw(w, STREAMS);
    char *memory = world_alloc(w->arena, bytes, alignment, w->streams[home], &is_short);
    expect(w, memory || is_short, "alloc failed, and memory is not short");
    if (!memory) return;
    expect(w, (uintptr_t)memory % alignment == 0, "alignment");
    *b = (block){memory, bytes, home, NOBODY, (int)draw(w, 256)};
    stamp(w, b);
}
static void do_free(world *w, block *b) {
    cudaStream_t stream = w->streams[b->home];
    verify(b, stream);
    if (draw(w, 4) == 0 &&
        b->other == NOBODY) { /* the last user is another stream, behind an event */
        cudaStream_t last = w->streams[draw(w, STREAMS)];
        follow(stream, last);
        verify(b, last);
        stream = last;
    }
    expect(w, world_free(w->arena, b->memory, stream) == 0, "free");
    if (draw(w, 50) == 0) expect(w, world_free(w->arena, b->memory, stream) != 0, "double free");
    b->memory = NULL;
}
static void do_record(world *w, block *b) {
    int other = (int)draw(w, STREAMS);
    follow(w->streams[b->home], w->streams[other]);
    verify(b, w->streams[other]);
    expect(w, world_record(w->arena, b->memory, w->streams[other]) == 0, "record_stream");
    b->other = other;
}
static void do_renew(world *w, int s) { /* a stream ends, and another may get its handle */
    int i;
    for (i = 0; i < BLOCKS; i++)
        if (w->blocks[i].memory && w->blocks[i].home == s) do_free(w, &w->blocks[i]);
    world_retire(w->arena, w->streams[s]);
    cudaStreamDestroy(w->streams[s]);
    cudaStreamCreateWithFlags(&w->streams[s], cudaStreamNonBlocking);
}
static void do_bad_pointers(world *w, const block *b) { /* refused, and the block lives on */
    cudaStream_t stream = w->streams[b->home];
    static char foreign[1024];
    expect(w, world_free(w->arena, foreign, stream) != 0, "a foreign pointer is freed");
    if (b->bytes > WORLD_INNER)
        expect(w, world_free(w->arena, b->memory + WORLD_INNER, stream) != 0,
               "an inner pointer is freed");
    verify(b, stream);
}
static void do_one(world *w) {
    block *b = &w->blocks[draw(w, BLOCKS)];
    if (!b->memory) do_alloc(w, b);
    else if (draw(w, 8) == 0) do_record(w, b);
    else if (draw(w, 30) == 0) do_bad_pointers(w, b);
    else do_free(w, b);
    if (draw(w, 3) == 0) fake_step(w->streams[draw(w, STREAMS)]);
    if (draw(w, 400) == 0) fake_run_all();
    if (draw(w, 300) == 0) do_renew(w, (int)draw(w, STREAMS));
    if (draw(w, 2000) == 0) expect(w, world_trim(w->arena) == 0, "trim");
    if (draw(w, 50) == 0) expect(w, world_check(w->arena) == 0, "check");
    expect(w, !fake_failures() && !fake_misuses(), fake_failure_text());
}
static int run_seed(uint64_t seed, long operations) {
    world w = {0};
    long i;
    int s;
    w.seed = seed;
    fake_mode(FAKE_STEPPED);
    for (s = 0; s < STREAMS; s++) cudaStreamCreateWithFlags(&w.streams[s], cudaStreamNonBlocking);
    expect(&w, world_open(&w.arena, draw(&w, 2) ? 0 : 256u << 20) == 0, "create");
    for (i = 0; i < operations && !w.wrong; i++) do_one(&w);
    for (s = 0; s < BLOCKS && !w.wrong; s++)
        if (w.blocks[s].memory) do_free(&w, &w.blocks[s]);
    if (!w.wrong) fake_run_all();
    if (!w.wrong) expect(&w, !fake_failures() && !fake_misuses(), fake_failure_text());
    if (!w.wrong)
        expect(&w, world_close(w.arena) == 0 && !fake_used_bytes(0), "destroy leaves memory");
    if (w.wrong)
        printf("operation %ld: %s\nrepeat: world %llu %llu %ld\n", i, w.wrong,
               (unsigned long long)seed, (unsigned long long)seed, operations);
    for (s = 0; s < STREAMS; s++) cudaStreamDestroy(w.streams[s]);
    return w.wrong != NULL;
}
int main(int count, char **words) {
    uint64_t seed = count > 1 ? strtoull(words[1], NULL, 10) : 1;
    uint64_t last = count > 2 ? strtoull(words[2], NULL, 10) : seed;
    long operations = count > 3 ? atol(words[3]) : 4000;
    for (; seed <= last; seed++)
        if (run_seed(seed, operations)) return 1;
    return puts("world: no seed failed") < 0;
}
