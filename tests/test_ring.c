/* The staging ring's contract: every way of a transfer, every size, every pointer; stream order;
   what is pinned; what is refused.

// build: plain
// build: check2 -DGPUPOOL_CHECK=2
// build: single -DGPUPOOL_SINGLE_THREAD=1 -DGPUPOOL_CHECK=2
// build: asan -fsanitize=address
// build: ubsan -fsanitize=undefined -fno-sanitize-recover=undefined
*/
#include "ring_watch.h"
#define GPUPOOL_IMPLEMENTATION
#include "../gpupool.h"
#include "ring_kit.h"

static const size_t sizes[] = {1, 2, 511, 512, 513, 16384, 16385, 65536, 100001, 262144, 1048576,
                               1048577, 3000000, 4194304, 9000001};

static void round_trip(gpupool_ring *ring, size_t bytes, size_t skew, cudaStream_t stream) {
    unsigned char *from = kit_host(bytes + skew), *to = kit_host(bytes + skew);
    unsigned char *device = kit_device(bytes + skew);
    check_case("%zu bytes, skew %zu", bytes, skew);
    kit_pattern(from + skew, bytes, bytes);
    CHECK_RESULT(gpupool_upload(ring, device + skew, from + skew, bytes, stream), GPUPOOL_OK);
    memset(from, 0xee, bytes + skew); /* the source may change */
    CHECK_RESULT(gpupool_download(ring, to + skew, device + skew, bytes, stream), GPUPOOL_OK);
    kit_is_pattern(to + skew, bytes, bytes, 0);
    kit_is_byte(to, skew, 0xee);
    kit_host_free(from, bytes + skew);
    kit_host_free(to, bytes + skew);
    kit_device_free(device, bytes + skew);
}

static void every_size_goes_there_and_back(void) {
    for (int workers = 0; workers <= 3; workers += 3) {
        gpupool_ring *ring = kit_ring(MIB, 0, workers);
        for (size_t i = 0; i < KIT_COUNT(sizes); i++)
            round_trip(ring, sizes[i], i % 3 ? 0 : 7, i % 2 ? kit_stream[0] : 0);
        kit_ring_close(ring);
    }
}

int main(void) {
    ARENA_TEST(every_size_goes_there_and_back);
    return check_finish();
}
