/* What a verdict says, from figures that are made up: each letter of a form, whose blocks are
   named, and a sentence that is too long. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

static gpupool_holder holder(uint64_t bytes, uint64_t blocks, uint64_t enough) {
    gpupool_holder made;
    memset(&made, 0, sizeof made);
    made.block_bytes = bytes / blocks;
    made.blocks = blocks;
    made.bytes = bytes;
    made.enough = enough;
    return made;
}

static void each_letter_has_its_figure(void) {
    gpupool_verdict v;
    memset(&v, 0, sizeof v);
    v.asked_bytes = 1 * KIB;
    v.device_total_bytes = 2 * KIB;
    v.granted_bytes = 4 * KIB;
    v.kept_bytes = 5 * KIB;
    v.limit_bytes = 6 * KIB;
    v.missing_bytes = 7 * KIB;
    v.others_bytes = 20 * KIB;
    v.siblings_bytes = 12 * KIB; /* so others hold 8 */
    v.fits_bytes = 13 * KIB;
    v.largest_block_bytes = 9 * KIB;
    v.raise_bytes = 10 * KIB;
    v.holders[0] = holder(33 * KIB, 3, 2);
    gpi_verdict_fill_in(&v, "%a|%d|%g|%h|%k|%l|%m|%n|%o|%r|%s|%+|%b|%w.");
    const char *said = "1.00 KiB|2.00 KiB|13.00 KiB|4.00 KiB|5.00 KiB|6.00 KiB|7.00 KiB|"
                       "2|8.00 KiB|9.00 KiB|12.00 KiB|10.00 KiB|the 3 blocks of 11.00 KiB|"
                       "all work in flight on the device.";
    if (!CHECK(strcmp(v.sentence, said) == 0)) printf("  %s\n", v.sentence);
    memset(v.sentence, 0, sizeof v.sentence);
    v.holders[0] = holder(11 * KIB, 1, 1);
    v.pending_streams = 3;
    gpi_verdict_fill_in(&v, "%b, %w");
    said = "the block of 11.00 KiB, the work in flight on 3 streams";
    if (!CHECK(strcmp(v.sentence, said) == 0)) printf("  %s\n", v.sentence);
}

static void the_fewest_bytes_are_named(void) {
    static const struct { uint64_t bytes, blocks, enough; } given[][3] = {
        {{100, 10, 9}, {60, 2, 1}, {100, 10, 4}}, {{100, 10, 0}, {60, 2, 2}, {60, 2, 2}},
        {{100, 1, 0}, {60, 2, 0}, {60, 2, 0}},    {{100, 10, 3}, {60, 3, 2}, {20, 2, 0}}};
    static const int best[] = {1, 1, 0, 0};
    for (size_t i = 0; i < KIT_COUNT(given); i++) {
        gpupool_verdict v;
        memset(&v, 0, sizeof v);
        check_case("case %zu", i);
        for (size_t k = 0; k < 3; k++)
            v.holders[k] = holder(given[i][k].bytes, given[i][k].blocks, given[i][k].enough);
        CHECK_EQ(gpi_verdict_best(&v) - v.holders, best[i]);
    }
}

static void what_is_too_long_is_cut(void) {
    struct { gpupool_verdict v; char behind[512]; } room;
    memset(&room, 0, sizeof room);
    for (int i = 0; i < 100; i++) gpi_verdict_say(&room.v, "0123456");
    CHECK_EQ(strlen(room.v.sentence), sizeof room.v.sentence - 1);
    for (size_t i = 0; i < sizeof room.behind; i++) CHECK_EQ(room.behind[i], 0);
}

int main(void) {
    TEST(each_letter_has_its_figure);
    TEST(the_fewest_bytes_are_named);
    TEST(what_is_too_long_is_cut);
    return check_finish();
}
