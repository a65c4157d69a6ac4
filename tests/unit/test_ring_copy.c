/* The ring's own copy, past the caches, against memmove: every alignment, every kind of length.

// build: plain
// build: asan -fsanitize=address
*/
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "ring_kit.h"

static void copies_like_memmove(void) {
    static const size_t lengths[] = {0, 1, 15, 16, 63, 64, 65, 4095, 16383, 16384, 16385, 50000};
    unsigned char *from = kit_host(60000), *to = kit_host(60000);
    kit_pattern(from, 60000, 1);
    for (size_t i = 0; i < KIT_COUNT(lengths); i++)
        for (size_t skew = 0; skew < 32; skew++)
            for (size_t other = 0; other < 17; other += 4) {
                size_t bytes = lengths[i];
                check_case("%zu bytes from %zu to %zu", bytes, other, skew);
                memset(to, 0xee, 60000);
                gpi_host_copy_away(to + skew, from + other, bytes);
                CHECK_EQ(memcmp(to + skew, from + other, bytes), 0);
                kit_is_byte(to, skew, 0xee);
                kit_is_byte(to + skew + bytes, 100, 0xee);
            }
    memset(from, 0xee, 60000);
    memset(to, 0xee, 60000);
    kit_host_free(from, 60000);
    kit_host_free(to, 60000);
}

int main(void) {
    TEST(copies_like_memmove);
    return check_finish();
}
