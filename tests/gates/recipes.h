/* What docs_test.sh makes programs of README.md's recipes with: the variables that a recipe takes
   for given, and a main that runs it on the simulated GPU, where no gpupool call may fail. With
   RECIPE_FAILS the request does not fit, and the program prints why. */
#define GPUPOOL_SITES 1
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#define GIVEN                                                                                     \
    gpupool_arena *arena, gpupool_ring *ring, cudaStream_t stream, size_t bytes, int file,        \
        cudaGraph_t graph, int *first, int *last
static void recipe(GIVEN);

#if defined(__cplusplus)
/* RMM's and Thrust's names, as far as the recipes need them. */
namespace rmm { namespace mr {
template <class Resource> void set_current_device_resource(Resource) {}
}} // namespace rmm::mr

namespace thrust {
template <class Policy> void sort(Policy, int *, int *) {}
namespace cuda {
struct policy { policy on(cudaStream_t) const { return *this; } };
template <class Allocator> policy par_nosync(Allocator &of) {
    of.deallocate(of.allocate(1), 1);
    return policy();
}
} // namespace cuda
} // namespace thrust
#endif

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, gpupool_last_error());
    return 1;
}

#define RECIPE_BYTES ((size_t)20 << 20)

int main(void) {
    gpupool_arena *arena;
    gpupool_ring *ring;
    cudaStream_t stream;
    FILE *file = tmpfile();
    if (!file || fseek(file, (long)RECIPE_BYTES - 1, SEEK_SET) || fputc(0, file) || fflush(file))
        return failed("file");
    if (gpupool_arena_create(&arena, NULL) != GPUPOOL_OK) return failed("arena");
    if (gpupool_set_limit_text(arena, "64MiB") != GPUPOOL_OK) return failed("limit");
    if (gpupool_ring_create(&ring, NULL) != GPUPOOL_OK) return failed("ring");
    if (cudaStreamCreate(&stream) != cudaSuccess) return failed("stream");
#if defined(RECIPE_FAILS)
    for (int i = 0; i < 2; i++)
#line 88 "model.c"
        if (!gpupool_alloc(arena, RECIPE_BYTES, stream)) return failed("block");
    recipe(arena, ring, stream, 2 * RECIPE_BYTES, fileno(file), NULL, NULL, NULL);
    return 0;
#else
    recipe(arena, ring, stream, RECIPE_BYTES, fileno(file), NULL, NULL, NULL);
    return gpupool_last_error()[0] ? failed("recipe") : 0;
#endif
}
