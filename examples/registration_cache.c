/* How does a network card get an arena's memory registered, once and never stale?

   The card here is made up: card_register and card_deregister stand for ibv_reg_mr and ibv_dereg_mr
   (for a real card set config.share = GPUPOOL_SHARE_RDMA), ucp_mem_map, ncclCommRegister, ...
   config.on_map registers memory that gpupool has mapped; config.on_unmap deregisters the memory
   before gpupool unmaps it.
   What to look at: far fewer registrations than blocks; every block that is sent has its key at
   once, also a block that was stitched together from several places; no registration is left at
   the end.
   Build: cc registration_cache.c -I.. -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcudart */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define ENTRIES 256

typedef struct entry { char *memory; size_t bytes; int key; } entry;
typedef struct cache { entry list[ENTRIES]; int count, next_key, registered; } cache;

static int card_register(cache *c, char *memory, size_t bytes) {
    (void)memory, (void)bytes;
    c->registered++;
    return ++c->next_key;
}

static void card_deregister(int key) { (void)key; }

/* One thread uses this arena; more would need a lock here. */
static int on_map(const gpupool_mapping *mapping, void *user) {
    cache *c = (cache *)user;
    entry *e = &c->list[c->count];
    if (c->count == ENTRIES) return 1; /* refused: the arena does without this memory */
    e->memory = (char *)mapping->memory;
    e->bytes = mapping->bytes;
    e->key = card_register(c, e->memory, e->bytes);
    c->count++;
    return 0;
}

static int on_unmap(const gpupool_mapping *mapping, void *user) {
    cache *c = (cache *)user;
    for (int i = 0; i < c->count; i++)
        if (c->list[i].memory == mapping->memory) {
            card_deregister(c->list[i].key);
            c->list[i] = c->list[--c->count];
            return 0;
        }
    return 0;
}

/* A block at home may go on in the next chunk: then it is sent in so many parts. 0: a part has no
   key, which must not be. */
static int send(const cache *c, char *block, size_t bytes) {
    int parts = 0;
    while (bytes) {
        const entry *e = c->list, *end = e + c->count;
        while (e < end && (block < e->memory || block >= e->memory + e->bytes)) e++;
        if (e == end) return 0;
        size_t part = (size_t)(e->memory + e->bytes - block);
        if (part > bytes) part = bytes;
        parts++; /* ibv_post_send(..., block, part, e->key) */
        block += part;
        bytes -= part;
    }
    return parts;
}

int main(void) {
    static cache c;
    gpupool_arena *arena;
    gpupool_arena_config config;
    char *block[32];
    size_t bytes[32];
    int sends = 0, parts = 0;
    memset(&config, 0, sizeof config);
    memset(block, 0, sizeof block);
    config.limit_bytes = 256 * MIB;
    config.chunk_bytes = 16 * MIB;
    config.on_map = on_map;
    config.on_unmap = on_unmap;
    config.user = &c;
    if (gpupool_arena_create(&arena, &config) != GPUPOOL_OK) {
        fprintf(stderr, "%s\n", gpupool_last_error());
        return EXIT_FAILURE;
    }
    srand(1);
    for (int step = 0; step < 10000; step++) {
        int i = rand() % 32;
        if (block[i]) {
            if (gpupool_free(arena, block[i], 0) != GPUPOOL_OK) return EXIT_FAILURE;
            block[i] = NULL;
            continue;
        }
        bytes[i] = (size_t)(1 + rand() % 24) * MIB;
        block[i] = (char *)gpupool_alloc(arena, bytes[i], 0);
        if (!block[i]) continue; /* the limit */
        int sent = send(&c, block[i], bytes[i]);
        if (!sent) {
            fprintf(stderr, "a block that the card does not know\n");
            return EXIT_FAILURE;
        }
        sends++;
        parts += sent;
    }
    gpupool_stats stats;
    gpupool_get_stats(arena, &stats);
    printf("%d blocks sent, in %d parts; %d registrations; %llu blocks were stitched\n", sends,
           parts, c.registered, (unsigned long long)(stats.stitches + stats.stitches_reused));
    for (int i = 0; i < 32; i++) gpupool_free(arena, block[i], 0);
    if (gpupool_arena_destroy(arena) != GPUPOOL_OK) {
        fprintf(stderr, "%s\n", gpupool_last_error());
        return EXIT_FAILURE;
    }
    printf("%d left registered\n", c.count);
    return c.count ? EXIT_FAILURE : EXIT_SUCCESS;
}
