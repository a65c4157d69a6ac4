/* A second device: after gpupool_allow_peer its kernels reach all memory of the arena, what comes
   later too, and its streams are streams like others. */
#include "gpupool.h"
#include "kit.h"

#define A kit_stream[0]
#define SIZE (24 * MIB)

static gpupool_arena *arena;
static cudaStream_t peer; /* of device 1 */

static int two_devices(void) {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 1;
}

static void begin(size_t limit) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED, limit);
    config.chunk_bytes = 2 * MIB;
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&peer, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    arena = kit_create(&config);
}

static void end(void) {
    kit_close(arena);
    CHECK_EQ(cudaStreamDestroy(peer), cudaSuccess);
}

static void allow(void) {
    CHECK_RESULT(gpupool_allow_peer(arena, 1), GPUPOOL_OK);
}

/* An event is made on the device of the stream that records it. */
static void follow(cudaStream_t later, cudaStream_t earlier) {
    CHECK_EQ(cudaSetDevice(earlier == peer), cudaSuccess);
    kit_follow(later, earlier);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

/* Both devices write a block and see what the other wrote. */
static void both_use(void *block, size_t bytes, int byte) {
    kit_write(block, bytes, peer, byte);
    follow(A, peer);
    kit_verify(block, bytes, A, byte);
    kit_write(block, bytes, A, byte + 1);
    follow(peer, A);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    kit_verify(block, bytes, peer, byte + 1);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

/* A block over two pieces that are not side by side; *rest lives between them. */
static void *stitched(void **rest) {
    void *piece[12], *block;
    uint64_t before = kit_stats(arena).stitches;
    int i;
    for (i = 0; i < 12; i++) piece[i] = gpupool_alloc(arena, 2 * MIB, A);
    for (i = 0; i < 12; i++)
        if (i != 5) kit_free(arena, piece[i], A);
    block = gpupool_alloc(arena, 20 * MIB, A);
    CHECK(kit_stats(arena).stitches > before);
    *rest = piece[5];
    return block;
}

/* ---- what the peer reaches ---- */

static void memory_of_before_and_after(void) {
    void *early, *rest[2], *before, *after;
    begin(0);
    early = gpupool_alloc(arena, 3 * MIB, A);
    before = stitched(&rest[0]);
    allow();
    both_use(early, 3 * MIB, 1);
    both_use(before, 20 * MIB, 3);
    after = stitched(&rest[1]);
    both_use(after, 20 * MIB, 5);
    allow(); /* it is one */
    CHECK_RESULT(gpupool_allow_peer(arena, 0), GPUPOOL_OK);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wake(arena), GPUPOOL_OK);
    both_use(early, 3 * MIB, 7);
    both_use(after, 20 * MIB, 9);
    kit_free(arena, early, peer);
    kit_free(arena, before, A);
    kit_free(arena, after, peer);
    kit_free(arena, rest[0], A);
    kit_free(arena, rest[1], A);
    end();
}

/* ---- its streams ---- */

/* One block at a time, which goes from stream to stream, and to requests that wait for the device:
   the race oracle sees who gets it too early. */
static void memory_goes_from_device_to_device(void) {
    begin(SIZE);
    allow();
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
#endif
    for (int i = 0; i < 24; i++) {
        cudaStream_t stream = i % 3 == 2 ? GPUPOOL_NO_STREAM : i % 2 ? peer : A;
        cudaStream_t work = i % 2 ? peer : A, user = i % 2 ? A : peer;
        void *block = gpupool_alloc(arena, i % 5 ? SIZE : 3000, stream);
        check_case("round %d", i);
        if (!CHECK(block)) break;
        kit_write(block, i % 5 ? SIZE : 3000, work, i);
        if (i % 4 == 3) {
            follow(user, work);
            kit_write(block, 3000, user, i + 1);
            CHECK_RESULT(gpupool_record_stream(arena, block, user), GPUPOOL_OK);
        }
        kit_free(arena, block, work);
    }
    end();
}

/* Sleep waits for the peer's work. */
static void sleep_waits(void) {
    void *block;
    begin(0);
    allow();
    block = gpupool_alloc(arena, SIZE, peer);
#if CHECK_FAKE
    fake_mode(FAKE_STEPPED);
#endif
    kit_write(block, SIZE, peer, 4);
    CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_KEEP), GPUPOOL_OK);
    CHECK_RESULT(gpupool_wake(arena), GPUPOOL_OK);
    kit_verify(block, SIZE, A, 4);
    kit_free(arena, block, A);
    end();
}

/* ---- refused by CUDA ---- */

#if CHECK_FAKE
static void unreachable(void) {
    fake_device_peers(0, 0);
    begin(0);
    KIT_REFUSES(gpupool_allow_peer(arena, 1), GPUPOOL_E_UNSUPPORTED, "reach");
    KIT_FAILS(gpupool_alloc(arena, MIB, peer), GPUPOOL_E_ARGUMENT, "peer");
    fake_device_peers(0, 1);
    allow();
    kit_free(arena, gpupool_alloc(arena, MIB, peer), peer);
    end();
}

#endif

int main(void) {
    if (!two_devices()) {
        check_skip("all", "needs two devices");
        return check_finish();
    }
    KIT_TEST(memory_of_before_and_after);
    KIT_TEST(memory_goes_from_device_to_device);
    KIT_TEST(sleep_waits);
#if CHECK_FAKE
    KIT_TEST(unreachable);
#endif
    return check_finish();
}
