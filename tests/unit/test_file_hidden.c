/* Compiled with nothing that shows pread (-std=c11, no macro): a ring cannot read files, says why,
   and does the rest. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "ring_kit.h"

#if defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE >= 200809
#define SHOWN 1
#else
static void files_are_not_supported(void) {
    size_t bytes = 100000;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *host = kit_host(bytes), *device = kit_device(bytes);
    CHECK_RESULT(gpupool_upload_file(ring, device, 0, 0, bytes, kit_stream[0]),
                 GPUPOOL_E_UNSUPPORTED);
    CHECK(strstr(gpupool_last_error(), "define _DEFAULT_SOURCE") != NULL);
    kit_pattern(host, bytes, 1);
    CHECK_RESULT(gpupool_upload(ring, device, host, bytes, kit_stream[0]), GPUPOOL_OK);
    kit_expect_device(device, bytes, 1);
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}
#endif

int main(void) {
#if SHOWN
    check_skip("files that are hidden", "this system shows pread anyway");
#else
    ARENA_TEST(files_are_not_supported);
#endif
    return check_finish();
}
