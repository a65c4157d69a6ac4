/* The file with the implementation; in any language. */
#define GPUPOOL_IMPLEMENTATION
#include "user.h"
#include "gpupool.h" /* a second include adds nothing */

int main(void) {
    gpupool_arena *arena;
    int wrong = gpupool_arena_create(&arena, NULL) != GPUPOOL_OK;
    if (wrong || use_blocks(arena) != 0 || gpupool_arena_destroy(arena) != GPUPOOL_OK) {
        fprintf(stderr, "%s\n", gpupool_last_error());
        return 1;
    }
    return 0;
}
