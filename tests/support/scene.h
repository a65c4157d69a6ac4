/* scene.h: arenas in random states, of every source, under random limits, on a device that others
   use too: for properties that are to hold in each. Include it after kit.h. */
#ifndef SCENE_H
#define SCENE_H

enum { SCENE_BLOCKS = 48 };

typedef struct scene {
    gpupool_arena *arena;
    gpupool_source source;
    void *blocks[SCENE_BLOCKS];
    size_t bytes[SCENE_BLOCKS];
    cudaStream_t streams[SCENE_BLOCKS]; /* where each was allocated */
    int count;
    gpupool_capture *captures[KIT_STREAMS]; /* one on each stream, if at all */
    int is_open[KIT_STREAMS];
} scene;

static uint64_t scene_seed = 1;

static inline uint32_t scene_random(uint32_t below) {
    scene_seed = scene_seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((scene_seed >> 33) * below >> 31);
}

/* Sizes of every kind: small ones, odd ones, whole granules, and some larger than all there is. */
static inline size_t scene_size(void) {
    switch (scene_random(6)) {
    case 0: return 1 + scene_random(20000);
    case 1: return (1 + scene_random(24)) * MIB * 2;
    case 2: return (1 + scene_random(16)) * MIB;
    default: return 1 + scene_random(1u << (12 + scene_random(14)));
    }
}

/* A default stream, streams of the program, and none. */
static inline cudaStream_t scene_stream(void) {
    uint32_t which = scene_random(KIT_STREAMS + 1);
    return which < KIT_STREAMS ? kit_stream[which] : GPUPOOL_NO_STREAM;
}

static void *scene_chunk_alloc(size_t bytes, void *user) {
    size_t *left = user;
    void *chunk = NULL;
    if (bytes > *left) return NULL;
    if (cudaMalloc(&chunk, bytes) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    *left -= bytes;
    return chunk;
}

static void scene_chunk_free(void *chunk, size_t bytes, void *user) {
    size_t *left = user;
    CHECK_EQ(cudaFree(chunk), cudaSuccess);
    *left += bytes;
}

static size_t scene_custom_left;

static inline size_t scene_limit(void) {
    return scene_random(3) ? MIB / 2 + scene_random(80 * 1024) * KIB + scene_random(2) * 300 : 0;
}

static inline void scene_others(void) {
    fake_other_process(0, scene_random(3) ? 0 : scene_random(90) * MIB);
}

static inline void scene_open(scene *s, gpupool_source source) {
    gpupool_arena_config config = kit_config(source, scene_limit());
    memset(s, 0, sizeof *s);
    fake_device_memory(0, 128 * MIB);
    scene_others();
    scene_custom_left = scene_random(100) * MIB;
    if (source == GPUPOOL_SOURCE_PINNED) fake_pinned_limit((8 + scene_random(100)) * MIB);
    if (source == GPUPOOL_SOURCE_CUSTOM) {
        config.chunk_alloc = scene_chunk_alloc;
        config.chunk_free = scene_chunk_free;
        config.user = &scene_custom_left;
    }
    if (!scene_random(4)) config.chunk_bytes = (1 + scene_random(8)) * MIB;
    s->source = source;
    s->arena = kit_create(&config);
}

static inline void scene_keep(scene *s, void *block, size_t bytes, cudaStream_t stream) {
    if (!block) return;
    s->blocks[s->count] = block;
    s->bytes[s->count] = bytes;
    s->streams[s->count++] = stream;
}

static inline void scene_alloc(scene *s) {
    gpupool_request request = {scene_size(), 0, scene_stream(), 0, NULL};
    if (s->count == SCENE_BLOCKS) return;
    if (!scene_random(8)) request.alignment = (size_t)1 << scene_random(24);
    if (!scene_random(8)) request.flags = GPUPOOL_NO_WAIT;
    if (!scene_random(16) && request.alignment <= 512) request.flags |= GPUPOOL_OWN_CHUNK;
    if (scene_random(2)) request.label = scene_random(2) ? "weights" : "cache";
    scene_keep(s, gpupool_alloc_request(s->arena, &request), request.bytes, request.stream);
}

static inline void scene_forget(scene *s, int which) {
    s->count--;
    s->blocks[which] = s->blocks[s->count];
    s->bytes[which] = s->bytes[s->count];
    s->streams[which] = s->streams[s->count];
}

/* Frees a block, mostly on its own stream. Work on it may be under way, and other streams' too. */
static inline void scene_free(scene *s, int which) {
    cudaStream_t stream = s->streams[which];
    void *block = s->blocks[which];
    if (stream != GPUPOOL_NO_STREAM && s->source != GPUPOOL_SOURCE_CUSTOM)
        kit_write(block, s->bytes[which] < 4096 ? s->bytes[which] : 4096, stream, 1);
    if (stream != GPUPOOL_NO_STREAM && !scene_random(3))
        gpupool_record_stream(s->arena, block, kit_stream[scene_random(KIT_STREAMS)]);
    kit_free(s->arena, block, stream);
    scene_forget(s, which);
}

/* Blocks of a scope end with it. */
static void scene_forget_ended(scene *s, cudaStream_t stream) {
    gpupool_block block;
    for (int i = s->count - 1; i >= 0; i--)
        if (s->streams[i] == stream &&
            gpupool_get_block(s->arena, s->blocks[i], &block) != GPUPOOL_OK)
            scene_forget(s, i);
}

/* Opens, closes or releases the scope of a stream. */
static inline void scene_scope(scene *s, int which) {
    if (!s->captures[which]) {
        CHECK_RESULT(gpupool_begin_capture(s->arena, kit_stream[which], &s->captures[which]),
                     GPUPOOL_OK);
        s->is_open[which] = 1;
    } else if (s->is_open[which] && scene_random(2)) {
        CHECK_RESULT(gpupool_end_capture(s->captures[which]), GPUPOOL_OK);
        s->is_open[which] = 0;
    } else {
        CHECK_RESULT(gpupool_release_capture(s->captures[which]), GPUPOOL_OK);
        scene_forget_ended(s, kit_stream[which]);
        s->captures[which] = NULL;
        s->is_open[which] = 0;
    }
}

static inline void scene_step(scene *s) {
    uint32_t what = scene_random(100);
    if (what < 50) scene_alloc(s);
    else if (what < 90 && s->count) scene_free(s, (int)scene_random((uint32_t)s->count));
    else if (what < 93) scene_scope(s, (int)scene_random(KIT_STREAMS));
    else if (what < 95) CHECK_RESULT(gpupool_set_limit(s->arena, scene_limit()), GPUPOOL_OK);
    else if (what < 96) CHECK_RESULT(gpupool_trim(s->arena, scene_size()), GPUPOOL_OK);
    else if (what < 98) scene_others();
}

static inline void scene_close(scene *s) {
    for (int i = 0; i < KIT_STREAMS; i++)
        while (s->captures[i]) scene_scope(s, i);
    while (s->count) scene_free(s, s->count - 1);
    kit_close(s->arena);
    fake_other_process(0, 0);
    fake_pinned_limit(0);
}

#endif
