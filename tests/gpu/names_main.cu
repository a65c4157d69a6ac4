/* On a GPU: Thrust's vectors of a type with constructors, over cudaMalloc and cudaFree that are
   gpupool's, in two files. Kernels must be found that are named after these functions, the memory
   must be the pool's, and none may be left. Closes with `N passed, N failed`. */
#define GPUPOOL_IMPLEMENTATION
#include "names.h"

#include <exception>

static int bad;

static void check(bool truth, const char *what, int line) {
    if (truth) return;
    bad++;
    printf("names_main.cu:%d: %s does not hold\n", line, what);
}
#define CHECK(truth) check((truth), #truth, __LINE__)

static const size_t COUNT = 100000;

static size_t pooled() { /* bytes that the program has from the pool */
    gpupool_stats stats;
    if (gpupool_get_stats(gpupool_get_default_arena(0), &stats) != GPUPOOL_OK) return 0;
    return stats.requested.now;
}

static void a_cuda_vector() {
    cuda_numbers vector(COUNT);
    CHECK(pooled() == COUNT * sizeof(number));
    CHECK(other_sum(vector) == 7 * (long)COUNT);
    other_resize(vector, 2 * COUNT);
    CHECK(other_sum(vector) == 14 * (long)COUNT);
    cuda_numbers copy(vector), three(10, number(3));
    CHECK(other_sum(copy) == 14 * (long)COUNT && other_sum(three) == 30);
    copy.clear();
    CHECK(copy.empty() && other_sum(vector) == 14 * (long)COUNT);
}

static void a_device_vector() {
    device_numbers vector(COUNT);
    CHECK(pooled() == COUNT * sizeof(number));
    CHECK(other_sum(vector) == 7 * (long)COUNT);
    vector.push_back(number(1000));
    vector.insert(vector.begin(), 5, number(1));
    CHECK(other_sum(vector) == 7 * (long)COUNT + 1005);
}

/* Its memory is cudaMallocManaged's, which stays CUDA's; so cudaFree passes it on. */
static void a_universal_vector() {
    size_t before = pooled();
    universal_numbers vector(COUNT);
    CHECK(pooled() == before);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(vector[COUNT - 1].value == 7); /* the host reads it */
    CHECK(other_sum(vector) == 7 * (long)COUNT);
    other_resize(vector, 2 * COUNT);
    CHECK(other_sum(vector) == 14 * (long)COUNT);
}

static void kernels_named_after_functions() {
    async_owner<cudaFreeAsync> owner = {nullptr, nullptr};
    CHECK(cudaStreamCreate(&owner.stream) == cudaSuccess);
    CHECK(cudaMallocAsync(&owner.memory, sizeof(int), owner.stream) == cudaSuccess);
    CHECK(pooled() == sizeof(int));
    CHECK(other_count(owner) == 3);
    CHECK(cudaFreeAsync(owner.memory, owner.stream) == cudaSuccess);
    CHECK(cudaStreamDestroy(owner.stream) == cudaSuccess);
    owner.memory = nullptr; /* NULL is fine */
    owner.stream = nullptr;
}

static void too_much_is_bad_alloc() {
    CHECK(gpupool_set_limit(gpupool_get_default_arena(0), (size_t)64 << 20) == GPUPOOL_OK);
    try {
        cuda_numbers vector((size_t)1 << 24);
        CHECK(!"thrown");
    } catch (const std::bad_alloc &) {
        CHECK(cudaGetLastError() == cudaSuccess); /* Thrust has taken it */
    }
    void *none = &none;
    CHECK(cudaMalloc(&none, (size_t)128 << 20) == cudaErrorMemoryAllocation && !none);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaMalloc(&none, 0) == cudaSuccess && cudaGetLastError() == cudaSuccess);
    CHECK(gpupool_set_limit(gpupool_get_default_arena(0), 0) == GPUPOOL_OK);
}

static bool passes(const char *name, void (*test)()) {
    bad = 0;
    try {
        test();
    } catch (const std::exception &error) {
        printf("%s\n", error.what());
        bad++;
    }
    CHECK(cudaDeviceSynchronize() == cudaSuccess && cudaGetLastError() == cudaSuccess);
    CHECK(pooled() == 0 && gpupool_check(gpupool_get_default_arena(0)) == GPUPOOL_OK);
    if (bad) printf("FAILED %s\n", name);
    return !bad;
}

int main() {
    int passed = 0, all = 0;
#define RUN(test) all++, passed += passes(#test, test)
    RUN(a_cuda_vector);
    RUN(a_device_vector);
    RUN(a_universal_vector);
    RUN(kernels_named_after_functions);
    RUN(too_much_is_bad_alloc);
    printf("%d passed, %d failed\n", passed, all - passed);
    return passed != all;
}
