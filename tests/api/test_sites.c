/* GPUPOOL_SITES: who has memory is said by file and line. */
#define GPUPOOL_SITES 1
#include "gpupool.h"
#include "kit.h"

static void labels_say_where(void) {
    gpupool_arena *arena = kit_open(8 * MIB);
    char place[64];
    gpupool_block told;
    void *block = gpupool_alloc(arena, 6 * MIB, kit_stream[0]);
    snprintf(place, sizeof place, "test_sites.c:%d", __LINE__ - 1);
    CHECK_RESULT(gpupool_get_block(arena, block, &told), GPUPOOL_OK);
    CHECK(strstr(told.label, place));
    CHECK(!gpupool_alloc(arena, 6 * MIB, kit_stream[0]));
    CHECK(strstr(gpupool_last_error(), place));
    kit_free(arena, block, kit_stream[0]);
    kit_close(arena);
}

int main(void) {
    KIT_TEST(labels_say_where);
    return check_finish();
}
