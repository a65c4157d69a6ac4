/* Stitched blocks through CUDA's own copies and memsets, graphs, a kernel that gathers over the
   seams, and a ring: every byte compared. */
#include "kit.h"

static kit_arena arena;
static unsigned char *stitched[2]; /* each over five chunks and a part of one more */
static const size_t BYTES = 5 * KIT_CHUNK + 3 * MIB + 512;
static std::vector<unsigned char> noise, found;

static void fill_noise() {
    uint64_t state = 88172645463325252u;
    noise.resize(BYTES);
    found.resize(BYTES);
    for (unsigned char &byte : noise) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        byte = (unsigned char)(state >> 32);
    }
}

static bool found_is(const unsigned char *expected, size_t bytes) {
    return memcmp(found.data(), expected, bytes) == 0;
}

/* The offset and the size are odd: no seam lies at a multiple of either. */
static void up_and_down(unsigned char *up, unsigned char *down) {
    const size_t offset = 4099, bytes = BYTES - 3 * offset;
    memset(down, 0, BYTES);
    CUDA(cudaMemsetAsync(stitched[0], 0, BYTES, arena.stream));
    CUDA(cudaMemcpyAsync(stitched[0] + offset, up, bytes, cudaMemcpyHostToDevice, arena.stream));
    CUDA(cudaMemcpyAsync(down, stitched[0] + offset, bytes, cudaMemcpyDeviceToHost, arena.stream));
    CUDA(cudaStreamSynchronize(arena.stream));
    CHECK(memcmp(down, up, bytes) == 0);
    memset(down, 1, BYTES);
    CUDA(cudaMemcpy(down, stitched[0], BYTES, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < offset; i++) CHECK(down[i] == 0);
    for (size_t i = offset + bytes; i < BYTES; i++) CHECK(down[i] == 0);
}

static void pageable_memory() {
    up_and_down(noise.data(), found.data());
}

static void pinned_memory() {
    unsigned char *up, *down;
    CUDA(cudaMallocHost((void **)&up, BYTES));
    CUDA(cudaMallocHost((void **)&down, BYTES));
    memcpy(up, noise.data(), BYTES);
    up_and_down(up, down);
    CUDA(cudaFreeHost(up));
    CUDA(cudaFreeHost(down));
}

static void stitch_to_stitch() {
    const size_t from = 12345, to = 777, bytes = BYTES - 99999;
    CUDA(cudaMemcpyAsync(stitched[0], noise.data(), BYTES, cudaMemcpyHostToDevice, arena.stream));
    CUDA(cudaMemcpyAsync(stitched[1] + to, stitched[0] + from, bytes, cudaMemcpyDeviceToDevice,
                         arena.stream));
    CUDA(cudaMemcpyAsync(found.data(), stitched[1] + to, bytes, cudaMemcpyDeviceToHost,
                         arena.stream));
    CUDA(cudaStreamSynchronize(arena.stream));
    CHECK(found_is(noise.data() + from, bytes));
}

/* Rows of one width, at a distance on the device that is no divisor of a chunk. */
static void rows() {
    const size_t width = 10007, pitch = 65793, height = BYTES / pitch;
    CUDA(cudaMemsetAsync(stitched[0], 9, BYTES, arena.stream));
    CUDA(cudaMemcpy2DAsync(stitched[0] + 5, pitch, noise.data(), width, width, height,
                           cudaMemcpyHostToDevice, arena.stream));
    CUDA(cudaMemcpy2DAsync(stitched[1] + 3, pitch, stitched[0] + 5, pitch, width, height,
                           cudaMemcpyDeviceToDevice, arena.stream));
    CUDA(cudaMemcpy2DAsync(found.data(), width, stitched[1] + 3, pitch, width, height,
                           cudaMemcpyDeviceToHost, arena.stream));
    CUDA(cudaStreamSynchronize(arena.stream));
    CHECK(found_is(noise.data(), width * height));
    CUDA(cudaMemcpy(found.data(), stitched[0], BYTES, cudaMemcpyDeviceToHost));
    size_t touched = 0; /* between the rows */
    for (size_t row = 0; row < height; row++)
        for (size_t i = 5 + width; i < pitch; i++) touched += found[row * pitch + i] != 9;
    CHECK(touched == 0);
}

static void memsets() {
    const size_t offset = 1023, bytes = BYTES - 4001, pitch = 65793, height = BYTES / pitch;
    std::vector<unsigned char> expected(BYTES, 1);
    memset(expected.data() + offset, 2, bytes);
    for (size_t row = 0; row < height; row++) memset(expected.data() + row * pitch, 3, 501);
    CUDA(cudaMemsetAsync(stitched[0], 1, BYTES, arena.stream));
    CUDA(cudaMemsetAsync(stitched[0] + offset, 2, bytes, arena.stream));
    CUDA(cudaMemset2DAsync(stitched[0], pitch, 3, 501, height, arena.stream));
    CUDA(cudaStreamSynchronize(arena.stream));
    CUDA(cudaMemcpy(found.data(), stitched[0], BYTES, cudaMemcpyDeviceToHost));
    CHECK(found_is(expected.data(), BYTES));
}

/* ---- graphs ---- */

static __global__ void add_one(word *block, size_t words) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        block[i]++;
}

/* A memset, a copy and two kernels on these two blocks; each launch adds one to every word. */
static cudaGraphExec_t capture_onto(word *a, word *b, cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CUDA(cudaMemsetAsync(b, 0xff, BYTES, stream));
    add_one<<<256, 256, 0, stream>>>(a, BYTES / sizeof(word));
    CUDA(cudaMemcpyAsync(b, a, BYTES, cudaMemcpyDeviceToDevice, stream));
    add_one<<<256, 256, 0, stream>>>(b, BYTES / sizeof(word));
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

static void launch_fifty(cudaGraphExec_t exec, word *a, word *b, cudaStream_t stream) {
    kit_stamp(a, BYTES, 0, stream);
    for (word i = 1; i <= 50; i++) {
        CUDA(cudaGraphLaunch(exec, stream));
        kit_verify(b, BYTES, i + 1, stream);
    }
    kit_verify(a, BYTES, 50, stream);
    CHECK(kit_wrong_words() == 0);
    CUDA(cudaGraphExecDestroy(exec));
}

static void a_graph_over_them() {
    word *a = (word *)stitched[0], *b = (word *)stitched[1];
    CUDA(cudaStreamBeginCapture(arena.stream, cudaStreamCaptureModeGlobal));
    launch_fifty(capture_onto(a, b, arena.stream), a, b, arena.stream);
}

/* Stitched while the stream captures, in a scope: the addresses last until its release. */
static void a_graph_with_its_own() {
    gpupool_arena_config config = {};
    kit_arena own = kit_open(config, 16);
    gpupool_capture *scope = nullptr;
    POOL(gpupool_begin_capture(own.pool, own.stream, &scope));
    CUDA(cudaStreamBeginCapture(own.stream, cudaStreamCaptureModeGlobal));
    word *a = (word *)kit_stitched(own.pool, BYTES, own.stream);
    word *b = (word *)kit_stitched(own.pool, BYTES, own.stream);
    cudaGraphExec_t exec = capture_onto(a, b, own.stream);
    POOL(gpupool_end_capture(scope));
    launch_fifty(exec, a, b, own.stream);
    POOL(gpupool_release_capture(scope));
    kit_close(own);
}

/* ---- kernels ---- */

/* Neighbouring threads read far apart, over every seam. */
static __global__ void gather(word *to, const word *from, size_t words, size_t stride) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        to[i] = from[i * stride % words];
}

static __global__ void verify_gathered(const word *to, size_t words, size_t stride, word mark) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x)
        if (to[i] != mark + i * stride % words) atomicAdd(&kit_wrong, 1);
}

static void gathers() {
    const size_t words = BYTES / sizeof(word), stride = 1000003;
    word *from = (word *)stitched[0], *to = (word *)stitched[1];
    kit_stamp(from, BYTES, 1000, arena.stream);
    gather<<<256, 256, 0, arena.stream>>>(to, from, words, stride);
    verify_gathered<<<256, 256, 0, arena.stream>>>(to, words, stride, 1000);
    CHECK(kit_wrong_words() == 0);
}

/* ---- the staging ring ---- */

static void through_a_ring() {
    gpupool_ring *ring = nullptr;
    POOL(gpupool_ring_create(&ring, nullptr));
    memset(found.data(), 0, BYTES);
    POOL(gpupool_upload(ring, stitched[1] + 77, noise.data(), BYTES - 77, arena.stream));
    POOL(gpupool_download(ring, found.data(), stitched[1] + 77, BYTES - 77, arena.stream));
    CHECK(found_is(noise.data(), BYTES - 77));
    POOL(gpupool_ring_destroy(ring));
}

static void the_blocks_are_stitched() {
    gpupool_arena_config config = {};
    arena = kit_open(config, 16);
    for (unsigned char *&block : stitched)
        block = (unsigned char *)kit_stitched(arena.pool, BYTES, arena.stream);
}

static void all_is_given_back() {
    for (unsigned char *block : stitched) POOL(gpupool_free(arena.pool, block, arena.stream));
    kit_close(arena);
}

int main() {
    fill_noise();
    RUN(the_blocks_are_stitched);
    if (kit_bad) return kit_end();
    RUN(pageable_memory);
    RUN(pinned_memory);
    RUN(stitch_to_stitch);
    RUN(rows);
    RUN(memsets);
    RUN(a_graph_over_them);
    RUN(a_graph_with_its_own);
    RUN(gathers);
    RUN(through_a_ring);
    RUN(all_is_given_back);
    return kit_end();
}
