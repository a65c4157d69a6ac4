/* Memory has run out: why, and how does the program go on?

   The failed call's verdict has the cause, a sentence, and figures to act on. The program acts in
   three ways, each of which must then succeed. It asks for what is available. It raises the limit
   by what the verdict says is missing. It has a cache, and gives some of it up whenever an
   allocation would fail: that is config.on_out_of_memory, and the allocation knows nothing of it.
   Build: cc -I.. -I$CUDA_HOME/include out_of_memory.c -L$CUDA_HOME/lib64 -lcudart -lpthread
   Prints the verdict's sentence, and what each way has got. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "example.h"

enum { CACHED = 20 };
static const size_t CACHED_BYTES = 3 * MIB;

typedef struct cache {
    gpupool_arena *arena;
    void *block[CACHED];
    int count, is_spared; /* 1: the program would rather fail */
} cache;

/* Called once by an allocation that has found no memory. 0: it fails; 1: it tries once more. */
static int shrink(const gpupool_verdict *why, void *user) {
    cache *c = (cache *)user;
    uint64_t freed = 0;
    if (c->is_spared) return 0;
    for (; c->count && freed < why->to_free; freed += CACHED_BYTES)
        POOL(gpupool_free(c->arena, c->block[--c->count], 0));
    return freed > 0;
}

static void *alloc(gpupool_arena *arena, size_t bytes, const char *label) {
    gpupool_request request = {bytes, 0, 0, 0, label};
    return gpupool_alloc_request(arena, &request);
}

static void fill(cache *c) {
    gpupool_arena_config config = {0};
    config.name = "inference";
    config.limit_bytes = 64 * MIB; /* or GPUPOOL_LIMIT=64MiB in the environment */
    config.on_out_of_memory = shrink;
    config.user = c;
    POOL(gpupool_arena_create(&c->arena, &config));
    for (c->count = 0; c->count < CACHED; c->count++)
        c->block[c->count] = BLOCK(alloc(c->arena, CACHED_BYTES, "cache"));
}

/* It fails, and says why in a sentence. */
static size_t ask_for_too_much(cache *c, size_t bytes) {
    c->is_spared = 1;
    if (alloc(c->arena, bytes, "batch")) FAIL("alloc", "more than the limit was given");
    if (gpupool_last_result() != GPUPOOL_E_OUT_OF_MEMORY) FAIL("alloc", gpupool_last_error());
    const gpupool_verdict *why = gpupool_last_verdict();
    printf("the verdict: %s\n", why->sentence);
    if (why->cause != GPUPOOL_CAUSE_LIMIT) FAIL("alloc", "the limit is not the cause");
    return (size_t)why->missing;
}

static void take(cache *c, const char *way, size_t bytes) {
    void *block = BLOCK(alloc(c->arena, bytes, "batch"));
    printf("%-20s %5.1f MiB, beside a cache of %d blocks\n", way, example_mib(bytes), c->count);
    POOL(gpupool_free(c->arena, block, 0));
}

int main(void) {
    cache c = {0};
    size_t wanted = 15 * MIB, available;
    fill(&c);
    size_t missing = ask_for_too_much(&c, wanted);

    POOL(gpupool_get_available(c.arena, 0, &available));
    take(&c, "what is available:", available);

    POOL(gpupool_set_limit(c.arena, 64 * MIB + missing));
    take(&c, "a higher limit:", wanted);

    c.is_spared = 0;
    POOL(gpupool_set_limit(c.arena, 64 * MIB)); /* lowered: idle memory goes back at once */
    take(&c, "a smaller cache:", wanted);

    while (c.count) POOL(gpupool_free(c.arena, c.block[--c.count], 0));
    POOL(gpupool_arena_destroy(c.arena));
    return EXIT_SUCCESS;
}
