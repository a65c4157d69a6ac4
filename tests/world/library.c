/* gpupool.h, compiled so that its host memory can be refused. */
#include <stdlib.h>
#include <sys/mman.h>

static long refuse_in;
static int refused;

void world_refuse_host_memory(long n);
int world_host_memory_refused(void);

void world_refuse_host_memory(long n) {
    refuse_in = n;
}
int world_host_memory_refused(void) {
    return refused ? refused-- : 0;
}
static int is_refused(void) {
    if (!refuse_in || --refuse_in) return 0;
    return refused = 1;
}
static void *world_malloc(size_t bytes) {
    return is_refused() ? NULL : malloc(bytes);
}
static int world_mprotect(void *pages, size_t bytes, int protection) {
    return is_refused() ? -1 : mprotect(pages, bytes, protection);
}

#define GPUPOOL_MALLOC(bytes) world_malloc(bytes)
#define GPUPOOL_FREE(memory) free(memory)
#define mprotect world_mprotect
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
