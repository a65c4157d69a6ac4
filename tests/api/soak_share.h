/* soak_share.h: what test_soak.c has in common with others: a file that goes to blocks through a
   ring, and blocks that are exported and imported. */
#ifndef SOAK_SHARE_H
#define SOAK_SHARE_H

#include "soak_blocks.h"

#include <unistd.h>

#define FILE_PARTS 8 /* of one byte each, over and over */
#define FILE_PART_BYTES MIB

static int soak_file = -1;
static atomic_long soak_files, soak_imports;

static inline int part_byte(unsigned part) { return (int)(part * 31 + 1); }

static inline void soak_open_file(FILE *file) {
    static unsigned char bytes[FILE_PART_BYTES];
    for (unsigned part = 0; part < FILE_PARTS; part++) {
        memset(bytes, part_byte(part), sizeof bytes);
        CHECK_EQ(fwrite(bytes, 1, sizeof bytes, file), sizeof bytes);
    }
    CHECK_EQ(fflush(file), 0);
    soak_file = fileno(file);
}

/* ---- files ---- */

/* All of the block is read from the file; where that fails, it is written again. */
static inline void read_file(actor *a, world *w, block *b, cudaStream_t stream) {
    unsigned part = (unsigned)below(a, FILE_PARTS);
    uint64_t at = part * FILE_PART_BYTES + below(a, FILE_PART_BYTES - b->bytes + 1);
    b->byte = part_byte(part);
    if (!CALL(a, 0, gpupool_upload_file(w->ring, b->at, soak_file, at, b->bytes, stream)))
        stamp(b, stream);
    else atomic_fetch_add(&soak_files, 1);
    is_written_now(w, b);
}

static inline void download(actor *a, world *w, const block *b, cudaStream_t stream) {
    unsigned char *host = (unsigned char *)malloc(b->bytes);
    size_t wrong = 0;
    if (CALL(a, 0, gpupool_download(w->ring, host, b->at, b->bytes, stream)))
        for (size_t i = 0; i < kit_edge(b->bytes); i++) wrong += host[i] != (unsigned char)b->byte;
    CHECK_EQ(wrong, 0);
    free(host);
}

/* On a stream that comes and goes, and that nobody holds. */
static inline void transfer(actor *a, world *w, block *b) {
    place own = {.device = w->device};
    cudaEvent_t before;
    enter_after(a, w, b, b->place);
    before = mark(a, &w->place[b->place]);
    new_stream(a, &own, 0);
    MUST(cudaStreamWaitEvent(own.stream, before, 0));
    MUST(cudaEventDestroy(before));
    MUST_APART(cudaStreamSynchronize(own.stream));
    device_goes_on();
    if (below(a, 2)) read_file(a, w, b, own.stream);
    else if (is_written(w, b)) download(a, w, b, own.stream);
    device_waits();
    MUST_APART(cudaStreamSynchronize(own.stream));
    soak_before(a);
    MUST(cudaStreamDestroy(own.stream));
    soak_seen(a, GPUPOOL_OK, "cudaStreamDestroy");
    leave(w, b->place);
}

static inline void act_file(actor *a, world *w) {
    block *b = pick_up(a, w);
    if (b && b->at && !b->lent && !b->graph && b->bytes <= FILE_PART_BYTES &&
        w->source != GPUPOOL_SOURCE_PINNED)
        transfer(a, w, b);
    if (b) put_down(w, b);
}

/* ---- exports ---- */

/* What is written at home is read at the other address. */
static inline void import_block(actor *a, char *at, const gpupool_exported *exported,
                                cudaStream_t stream) {
    gpupool_imported there;
    int byte = (int)below(a, 256);
    if (!CALL(a, 1, gpupool_import(a->device, exported, &there))) return;
    CHECK_EQ(there.bytes, exported->bytes);
    kit_mark(stream, at, there.bytes, byte);
    kit_expect_mark(stream, there.memory, there.bytes, byte);
    MUST_APART(cudaStreamSynchronize(stream));
    while (!CALL(a, 1, gpupool_import_close(&there)) && !atomic_load(&check_bad)) {}
    atomic_fetch_add(&soak_imports, 1);
}

static inline void share_block(actor *a, gpupool_arena *arena, cudaStream_t stream) {
    gpupool_exported exported;
    char *at;
    soak_before(a);
    at = (char *)kit_alloc_as(arena, 1 + below(a, 4 * MIB), stream, GPUPOOL_EXPORTABLE);
    if (!soak_after(a, kit_why(at), 1, "an exportable block")) return;
    if (CALL(a, 0, gpupool_export(arena, at, &exported))) {
        import_block(a, at, &exported, stream);
        while (!CALL(a, 0, gpupool_export_close(arena, at)) && !atomic_load(&check_bad)) {}
    }
    while (!CALL(a, 0, gpupool_free(arena, at, stream)) && !atomic_load(&check_bad)) {}
}

/* An arena whose blocks can be exported, for a moment. */
static inline void act_share(actor *a, world *w) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpupool_arena *arena = NULL;
    unsigned at = some_place(a, w);
    if (w->place[at].device != w->device) return;
    cudaStream_t stream = enter(a, w, at);
    config.device = w->device;
    config.share = GPUPOOL_SHARE_PROCESSES;
    if (CALL(a, 1, gpupool_arena_create(&arena, &config))) {
        share_block(a, arena, stream);
        while (!CALL(a, 0, gpupool_arena_destroy(arena)) && !atomic_load(&check_bad)) {}
    }
    leave(w, at);
}

#endif
