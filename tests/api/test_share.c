/* Export and import: the same memory, as long as anybody has it. In two processes: the example
   share_block.c, and make gpu-share. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define SIZE (6 * MIB)

static gpupool_arena *arena;

static void begin(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED, 64 * MIB);
    config.share = GPUPOOL_SHARE_PROCESSES;
    arena = kit_create(&config);
}

static void *own_chunk(size_t bytes) {
    void *block = kit_alloc_as(arena, bytes, 0, A, GPUPOOL_OWN_CHUNK);
    CHECK(block);
    return block;
}

static gpupool_exported exported_of(const void *block) {
    gpupool_exported exported;
    memset(&exported, 0, sizeof exported);
    exported.descriptor = -1;
    CHECK_RESULT(gpupool_export(arena, block, &exported), GPUPOOL_OK);
    CHECK(fcntl(exported.descriptor, F_GETFD) & FD_CLOEXEC);
    return exported;
}

static gpupool_imported imported_of(const gpupool_exported *exported) {
    gpupool_imported imported;
    CHECK_RESULT(gpupool_import(0, exported, &imported), GPUPOOL_OK);
    CHECK_EQ(imported.bytes, exported->bytes);
    return imported;
}

/* Each export is a descriptor of its own; the memory outlives block, arena and descriptor. */
static void as_long_as_anybody_has_it(void) {
    gpupool_imported imported[2];
    gpupool_exported exported;
    void *block;
    int i;
    begin();
    block = own_chunk(SIZE);
    for (i = 0; i < 2; i++) {
        exported = exported_of(block);
        imported[i] = imported_of(&exported);
        CHECK_EQ(close(exported.descriptor), 0);
    }
    CHECK(imported[0].memory != imported[1].memory);
    kit_write(block, SIZE, A, 1);
    kit_verify(imported[0].memory, SIZE, A, 1);
    kit_write(imported[1].memory, SIZE, A, 2);
    kit_verify(block, SIZE, A, 2);
    kit_free(arena, block, A);
    kit_close(arena);
    kit_verify(imported[0].memory, SIZE, A, 2);
    for (i = 0; i < 2; i++) CHECK_RESULT(gpupool_import_close(&imported[i]), GPUPOOL_OK);
    KIT_REFUSES(gpupool_import_close(&imported[0]), GPUPOOL_E_ARGUMENT, "imported");
}

/* An arena with an exported block does not sleep: waking would give it other memory. */
static void no_sleep_meanwhile(void) {
    gpupool_exported exported;
    void *block;
    begin();
    block = own_chunk(SIZE);
    exported = exported_of(block);
    close(exported.descriptor);
    KIT_REFUSES(gpupool_sleep(arena, GPUPOOL_KEEP), GPUPOOL_E_IN_USE, "exported");
    kit_free(arena, block, A);
    block = own_chunk(SIZE); /* the same chunk, not exported */
    kit_write(block, SIZE, A, 1);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_KEEP), GPUPOOL_OK);
    KIT_REFUSES(gpupool_export(arena, block, &exported), GPUPOOL_E_ASLEEP, "sleeps");
    CHECK_RESULT(gpupool_wake(arena), GPUPOOL_OK);
    kit_verify(block, SIZE, A, 1);
    exported = exported_of(block);
    close(exported.descriptor);
    kit_free(arena, block, A);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(as_long_as_anybody_has_it);
    KIT_TEST(no_sleep_meanwhile);
    return check_finish();
}
