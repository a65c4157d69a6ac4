/* The first translation unit: it uses the library too, and asks the second whether it could. */
#include "user.h"

#include "../../../gpupool.h"

int main(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    void *block = gpupool_alloc(arena, (size_t)3 << 20, 0);
    if (!block || gpupool_free(arena, block, 0) != GPUPOOL_OK) {
        fprintf(stderr, "main: %s\n", gpupool_last_error());
        return 1;
    }
    if (user_runs()) return 0;
    fprintf(stderr, "user: %s\n", gpupool_last_error());
    return 1;
}
