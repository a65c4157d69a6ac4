/* Handles as the CUDA runtime's are seen from outside: opaque, recycled last in, first out. As was
 * confirmed on an H200, a destroyed stream's handle is the very next new stream's, even while the
 * destroyed one's work still runs; a stream's id is never used again. They are numbers in a range
 * where nothing lies, so following one as a pointer faults. */
#include "fk.h"

#include <stdlib.h>

uint64_t fk_pool_add(fk_pool *pool, void *item) {
    size_t index;
    if (pool->n_spare > 0) {
        index = pool->spare[--pool->n_spare];
    } else {
        if (pool->n == pool->room) {
            pool->room = pool->room ? 2 * pool->room : 64;
            pool->items = fk_grow(pool->items, pool->room, sizeof *pool->items);
            pool->spare = fk_grow(pool->spare, pool->room, sizeof *pool->spare);
        }
        index = pool->n++;
    }
    pool->items[index] = item;
    pool->live++;
    return pool->base + (uint64_t)index * FK_HANDLE_STEP;
}

void *fk_pool_get(const fk_pool *pool, uint64_t handle) {
    uint64_t offset = handle - pool->base;
    if (handle < pool->base || offset % FK_HANDLE_STEP || offset / FK_HANDLE_STEP >= pool->n)
        return NULL;
    return pool->items[offset / FK_HANDLE_STEP];
}

void fk_pool_remove(fk_pool *pool, uint64_t handle) {
    size_t index = (size_t)((handle - pool->base) / FK_HANDLE_STEP);
    pool->items[index] = NULL;
    pool->spare[pool->n_spare++] = index;
    pool->live--;
}

void fk_pool_reset(fk_pool *pool) {
    free(pool->items);
    free(pool->spare);
    pool->items = NULL;
    pool->spare = NULL;
    pool->n = pool->room = pool->live = pool->n_spare = 0;
}
