/* Who has memory: a verdict's walk over the blocks lets other threads pass, who may free all of
   them before it ends. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "kit.h"

static void nobody_is_left(void) {
    gpupool_arena *arena = kit_open(0);
    gpi_holder holders[GPI_HOLDERS];
    char text[64];
    kit_free(arena, gpupool_alloc(arena, MIB, GPUPOOL_NO_STREAM), GPUPOOL_NO_STREAM);
    gpi_holder_list(arena, holders);
    gpi_holder_write(holders, text, sizeof text);
    CHECK(strcmp(text, "0 blocks of up to 0 B") == 0);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(nobody_is_left);
    return check_finish();
}
