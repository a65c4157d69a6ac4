/* Reports of small arenas, word by word and, in the picture, box by box. */
// build: sizes -fsanitize=address
// build: sites -fsanitize=address -DGPUPOOL_SITES=1
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "report_kit.h"

#if CHECK_FAKE
static unsigned long long number(const void *address) {
    return (unsigned long long)(uintptr_t)address;
}

/* Two chunks: a KiB freed, a MiB live and a rest, and 3 MiB live with a rest, of two streams. */
static void a_small_arena(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_DEVICE);
    unsigned long long at[3], stream[2];
    char *block[3];
    config.name = "small";
    config.limit_bytes = 64 * MIB;
    arena = kit_create(&config);
    block[0] = (char *)kit_alloc(arena, 700, kit_stream[0]);
    block[1] = (char *)kit_alloc(arena, MIB, kit_stream[1]);
    block[2] = (char *)kit_alloc(arena, 3 * MIB - 100, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block[0], kit_stream[0]), GPUPOOL_OK);
    CHECK(gpupool_alloc(arena, GIB, kit_stream[0]) == NULL);
    for (int i = 0; i < 3; i++) at[i] = number(block[i]);
    for (int i = 0; i < 2; i++) stream[i] = number(kit_stream[i]);

    written(gpupool_report);
    says("gpupool arena \"small\": device 0, source device\n  [####..        ");
    says("  ] 6.00 MiB of a limit of 64.00 MiB\n   # live   ~ freed, ");
    says("                          now           peak          total\n"
         "  requested          4.00 MiB       4.00 MiB       4.00 MiB\n");
    says("  blocks                    2              3              3\n");
    if (!GPUPOOL_SITES) /* else by their lines */
        says("  3.00 MiB                                  1     3.00 MiB\n"
             "  1.00 MiB                                  1     1.00 MiB\n");
    CHECK_EQ(times("unknown origin"), 0); /* no more holders, */
    CHECK_EQ(times(" none\n"), 0);        /* and no tags */
    says("  +#########################################+.....................\n"
         "  .....................+##########################################\n"
         "  ################################################################\n"
         "  #####################-..........................................\n");

    written(gpupool_write_json);
    says("{\"gpupool\":1,\"name\":\"small\",\"device\":0,\"source\":\"device\",");
    says(",\"others_bytes\":0,\n");
    says("\"free_bytes\":2097152,\"largest_free_bytes\":1048576,");
    says("\"allocs\":3,\"frees\":1,\"failures\":1,\"same_stream_allocs\":0,");
    says("\"fragmentation\":0.500000,\n");
    says("\"streams\":[%llu,%llu],\n", stream[1], stream[0]);
    says("\"state\":\"pending\",\"stream\":1,\"site\":null},\n"
         "{\"address\":%llu,\"bytes\":1048576,\"state\":\"live\",\"requested_bytes\":1048576,"
         "\"stream\":0,", at[1]);
    says("\"bytes\":1047552,\"state\":\"free\",\"stream\":null,\"site\":null}]},\n"
         "{\"address\":%llu,\"bytes\":4194304,\"blocks\":[", at[2]);
    says("{\"address\":%llu,\"bytes\":3145728,\"state\":\"live\","
         "\"requested_bytes\":3145628,", at[2]);
    CHECK(strcmp(text + strlen(text) - 6, "}]}]}\n") == 0);

    written(gpupool_write_svg);
    says("4.00 MiB live in 2 blocks, 6.00 MiB reserved, limit 64.00 MiB</text>");
    says("a row is 2.00 MiB; short chunks share one; point at a block for its size");
    says("stream 0x%llx</text>", stream[0]);
    says(">chunk 1</text>\n<rect x=\"128.00\" y=\"144\" width=\"0.50\"");
    says("freed, perhaps still in use: 1.00 KiB (1,024 bytes) at 0x%llx, chunk 1, "
         "stream 0x%llx</title>",
         at[0], stream[0]);
    says("<rect x=\"128.50\" y=\"144\" width=\"511.40\" height=\"13\" fill=\"#0072b2\"><title>"
         "live: 1.00 MiB (1,048,576 bytes) at 0x%llx, ", at[1]);
    says("<text x=\"120\" y=\"186\" text-anchor=\"end\">+ 2.00 MiB</text>\n"
         "<rect x=\"128.00\" y=\"176\" width=\"511.40\"");
    says("live: 3.00 MiB (3,145,628 bytes) at 0x%llx, ", at[2]);

    written(gpupool_write_snapshot);
    CHECK_EQ((unsigned char)text[0], 0x80); /* how a pickle of protocol 2 begins */
    CHECK_EQ(text[1], 2);
    for (int i = 1; i < 3; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[2 - i]), GPUPOOL_OK);
    kit_close(arena);
}

/* The device is the arena's, not the one that is current. */
static void an_arena_elsewhere(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    config.device = 1;
    arena = kit_create(&config);
    written(gpupool_report);
    says(": device 1, source ");
    written(gpupool_write_json);
    says("\"device\":1,");
    says("\"streams\":[],\n"); /* and more follows */
    kit_close(arena);
}

/* Boxes stand side by side, each behind the words of the one before, in lines one below the other;
   the last of them is for all streams that have no colour of their own. */
static void the_boxes_of_a_legend(void) {
    cudaStream_t streams[9];
    void *blocks[9];
    open_named("legend", GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 9; i++) {
        CHECK_EQ(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), cudaSuccess);
        blocks[i] = kit_alloc(arena, 512, streams[i]);
        written(gpupool_write_svg);
        CHECK_EQ(times("stroke-width=\"0.5\"/><text"), 3 + (i < 7 ? i + 1 : 8));
    }
    double x, y, ends = 16, line = 70;
    int words_x, words_y, words = 0, boxes = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL;) {
        if (sscanf(++at, "<rect x=\"%lf\" y=\"%lf\" width=\"14.00\" height=\"12\" fill=\"%*[^\"]\" "
                   "stroke=\"#999\" stroke-width=\"0.5\"/><text x=\"%d\" y=\"%d\">%n",
                   &x, &y, &words_x, &words_y, &words) != 4)
            continue;
        check_case("box %d", boxes);
        if (boxes == 3 || y > line) { /* streams begin a line of their own */
            line += boxes == 3 ? 20 : 18;
            ends = 16;
        }
        CHECK_EQ(y, line);
        CHECK(ends == 16 ? x == 16 : x > ends);
        ends = x + 20 + 5 * (double)strcspn(at + words, "<"); /* narrow letters */
        CHECK(ends < 1152);
        CHECK_EQ(words_x, (int)(x + 20.5));
        CHECK_EQ(words_y, (int)y + 10);
        boxes++;
    }
    CHECK_EQ(boxes, 11);
    CHECK_EQ(line, 108);
    for (int i = 0; i < 9; i++) {
        CHECK_RESULT(gpupool_free(arena, blocks[i], streams[i]), GPUPOOL_OK);
        CHECK_EQ(cudaStreamDestroy(streams[i]), cudaSuccess);
    }
    kit_close(arena);
}

/* Blocks too narrow to be seen share a stripe, whose title tells the sum of them alone. */
static void stripes_of_narrow_blocks(void) {
    char *blocks[12];
    open_named("narrow", GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 12; i++) blocks[i] = (char *)kit_alloc(arena, 512, kit_stream[0]);
    written(gpupool_write_svg);
    CHECK_EQ(times("><title>stretches: 4; 2.00 KiB live, 0 B freed, 0 B free</title>"), 3);
    CHECK_EQ(times("height=\"13\""), times("</title></rect>")); /* all as high as a row */
    fake_mode(FAKE_STEPPED);
    for (int i = 1; i < 12; i += 4)
        CHECK_RESULT(gpupool_free(arena, blocks[i], kit_stream[0]), GPUPOOL_OK);
    written(gpupool_write_svg);
    CHECK_EQ(times("><title>stretches: 4; 1.50 KiB live, 512 B freed, 0 B free</title>"), 3);
    fake_mode(FAKE_EAGER);
    for (int i = 0; i < 12; i++)
        if (i % 4 != 1)
            CHECK_RESULT(gpupool_free(arena, blocks[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* Each part of a stitched block names the block, whose address lies elsewhere. */
static void parts_of_a_stitched_block(void) {
    void *small[16];
    char title[60];
    arena = kit_open_limited(GPUPOOL_SOURCE_MAPPED, 32 * MIB);
    for (int i = 0; i < 16; i++) small[i] = kit_alloc(arena, 2 * MIB, kit_stream[0]);
    for (int i = 0; i < 16; i += 2)
        CHECK_RESULT(gpupool_free(arena, small[i], kit_stream[0]), GPUPOOL_OK);
    void *block = kit_alloc(arena, 6 * MIB, kit_stream[0]);
    written(gpupool_write_svg);
    snprintf(title, sizeof title, ", part of the block at 0x%llx",
             (unsigned long long)(uintptr_t)block);
    CHECK_EQ(times(title), 3);
    CHECK_EQ(times(", part of the block at "), 3);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    for (int i = 1; i < 16; i += 2)
        CHECK_RESULT(gpupool_free(arena, small[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* Without a limit the bar is what is reserved and what the device has more. */
static void a_bar_without_a_limit(void) {
    size_t free_bytes, total_bytes;
    open_named("bar", GPUPOOL_SOURCE_DEVICE);
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    void *half = kit_alloc(arena, free_bytes / 2 / MIB * MIB, 0);
    written(gpupool_report);
    says("\n  [################################                                ] ");
    CHECK_RESULT(gpupool_free(arena, half, 0), GPUPOOL_OK);
    kit_close(arena);
}

/* As many characters as there are units would not do for one unit more. */
static void a_map_of_a_unit_more(void) {
    open_named("257", GPUPOOL_SOURCE_BYPASS);
    void *block = kit_alloc(arena, 257 * 512, 0);
    written(gpupool_report);
    says("map: a character is 1.00 KiB ");
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    kit_close(arena);
}

static void an_empty_arena(void) {
    open_named("empty", GPUPOOL_SOURCE_DEVICE);
    written(gpupool_report);
    CHECK_EQ(times("map:"), 0);
    written(gpupool_write_svg);
    CHECK_EQ(times("y=\"48\""), 0);
    CHECK_EQ(times("</svg>\n"), 1);
    kit_close(arena);
}

static void reserved_beyond_the_limit(void) {
    open_named("over", GPUPOOL_SOURCE_DEVICE);
    void *block = kit_alloc(arena, 100 * MIB, 0);
    CHECK_RESULT(gpupool_set_limit(arena, 60 * MIB), GPUPOOL_OK);
    written(gpupool_report);
    says("] 100 MiB of a limit of 60.00 MiB\n   above the limit by 40.00 MiB: no growth until ");
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- chunks that touch ---- */

static char *next_chunk;

static void *chunk_behind_the_last(size_t bytes, int device, void *user) {
    char *chunk = next_chunk;
    (void)device, (void)user;
    next_chunk += bytes;
    return chunk;
}

static void no_chunk_back(void *chunk, size_t bytes, int device, void *user) {
    (void)chunk, (void)bytes, (void)device, (void)user;
}

/* Two chunks are two, even where one ends at the other's first byte. */
static void chunks_that_touch(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_CUSTOM);
    void *region = NULL, *blocks[2];
    CHECK_EQ(cudaMalloc(&region, 64 * MIB), cudaSuccess);
    next_chunk = (char *)region;
    config.chunk_alloc = chunk_behind_the_last;
    config.chunk_free = no_chunk_back;
    config.chunk_bytes = 2 * MIB;
    arena = kit_create(&config);
    for (int i = 0; i < 2; i++) blocks[i] = kit_alloc(arena, 2 * MIB - 700, 0);
    CHECK_EQ((char *)blocks[1] - (char *)blocks[0], (ptrdiff_t)(2 * MIB));
    written(gpupool_write_json);
    CHECK_EQ(times("\"blocks\":[{"), 2);
    for (int i = 0; i < 2; i++)
        says("{\"address\":%llu,\"bytes\":2097152,\"blocks\":", number(blocks[i]));
    written(gpupool_write_svg);
    says(">chunk 2</text>");
    for (int i = 0; i < 2; i++) CHECK_RESULT(gpupool_free(arena, blocks[i], 0), GPUPOOL_OK);
    kit_close(arena);
    CHECK_EQ(cudaFree(region), cudaSuccess);
}

/* ---- holders and streams ---- */

#if !GPUPOOL_SITES
/* A block counts with what was asked for, not with the units that it has. */
static void holders_by_what_they_asked_for(void) {
    void *blocks[3];
    open_named("slack", GPUPOOL_SOURCE_DEVICE);
    for (int i = 0; i < 3; i++) blocks[i] = kit_alloc(arena, 700, 0);
    written(gpupool_report);
    says("  %-30s %12d %12s\n", "700 B", 3, "2.05 KiB");
    for (int i = 0; i < 3; i++) CHECK_RESULT(gpupool_free(arena, blocks[i], 0), GPUPOOL_OK);
    kit_close(arena);
}
#endif

/* A block names its tag by its place in the list of tags. */
static void blocks_with_tags(void) {
    gpupool_request request = kit_request(MIB, kit_stream[0], 0);
    gpupool_tag_config config;
    void *block[3] = {NULL};
    int tag[2];
    memset(&config, 0, sizeof config);
    open_named("tags", GPUPOOL_SOURCE_DEVICE);
    CHECK_RESULT(gpupool_tag(arena, "first", &config, &tag[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_tag(arena, "second", &config, &tag[1]), GPUPOOL_OK);
    for (int i = 0; i < 3; i++) {
        request.tag = i < 2 ? tag[i] : 0;
        block[i] = gpupool_alloc_request(arena, &request);
    }
    written(gpupool_write_json);
    for (int i = 0; i < 3; i++)
        says("\"address\":%llu,\"bytes\":1048576,\"state\":\"live\",\"requested_bytes\":1048576,"
             "%s\"stream\":0,", number(block[i]), i < 2 ? i ? "\"tag\":1," : "\"tag\":0," : "");
    for (int i = 0; i < 3; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* All tags in one table, and below one that sleeps how much of it does. */
static void a_table_of_tags(void) {
    static const char row[] = "  %-30s %12s %12s %12s %12s\n";
    gpupool_request request = kit_request(MIB, kit_stream[0], 0);
    gpupool_tag_config config;
    char table[500];
    void *block[2];
    int tag[2], at = 0;
    memset(&config, 0, sizeof config);
    open_named("tags", GPUPOOL_SOURCE_MAPPED);
    config.limit_bytes = 2 * MIB;
    CHECK_RESULT(gpupool_tag(arena, "first", &config, &tag[0]), GPUPOOL_OK);
    config.limit_bytes = 0;
    config.can_sleep = 1;
    CHECK_RESULT(gpupool_tag(arena, "second", &config, &tag[1]), GPUPOOL_OK);
    for (size_t i = 0; i < 2; i++) {
        request.tag = tag[i];
        request.bytes = i ? 4 * MIB : MIB;
        block[i] = gpupool_alloc_request(arena, &request);
    }
    CHECK_RESULT(gpupool_sleep(arena, tag[1], GPUPOOL_DISCARD, NULL), GPUPOOL_OK);
    written(gpupool_report);
    at += sprintf(table + at, row, "tags", "blocks", "granted", "peak", "budget");
    at += sprintf(table + at, row, "first", "1", "1.00 MiB", "1.00 MiB", "2.00 MiB");
    at += sprintf(table + at, row, "second", "1", "4.00 MiB", "4.00 MiB", "none");
    sprintf(table + at, "  %-30s %12s\n", "    asleep", "4.00 MiB");
    says("\n\n%s\n", table);
    written(gpupool_write_json);
    says("\"tags\":[{\"name\":\"first\",\"limit_bytes\":2097152,\"soft_limit_bytes\":null,"
         "\"granted\":{\"now\":1048576,\"peak\":1048576,\"total\":1048576},"
         "\"blocks\":{\"now\":1,\"peak\":1,\"total\":1},\"failures\":0,\"asleep_bytes\":0},\n"
         "{\"name\":\"second\",");
    says("\"failures\":0,\"asleep_bytes\":4194304}],\n");
    CHECK_RESULT(gpupool_wake(arena, tag[1], NULL), GPUPOOL_OK);
    for (int i = 0; i < 2; i++)
        CHECK_RESULT(gpupool_free(arena, block[i], kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* Freed memory is its stream's, also once a fence lies behind it. */
static void memory_behind_a_fence(void) {
    fake_mode(FAKE_STEPPED);
    open_named("fence", GPUPOOL_SOURCE_DEVICE);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    CHECK_EQ(fake_write(kit_stream[0], "work", block, 512, 1), cudaSuccess);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* puts a fence behind it */
    void *kept = kit_alloc(arena, MIB, kit_stream[1]);
    written(gpupool_write_json);
    says("\"state\":\"pending\",\"stream\":1,");
    says("\"streams\":[%llu,%llu]", number(kit_stream[1]), number(kit_stream[0]));
    fake_mode(FAKE_EAGER);
    CHECK_RESULT(gpupool_free(arena, kept, kit_stream[1]), GPUPOOL_OK);
    kit_close(arena);
}

/* What was a stream's that is forgotten may be another's by now. */
static void lanes_that_were_of_others(void) {
    for (int i = 0; i < KIT_STREAMS; i++) {
        check_case("stream %d", i);
        fake_mode(FAKE_EAGER);
        open_named("lists", GPUPOOL_SOURCE_DEVICE);
        for (int k = 0; k < KIT_STREAMS; k++) {
            void *block = kit_alloc(arena, MIB, kit_stream[k]);
            CHECK_RESULT(gpupool_free(arena, block, kit_stream[k]), GPUPOOL_OK);
            CHECK_RESULT(gpupool_retire_stream(arena, kit_stream[k]), GPUPOOL_OK);
            CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* it is forgotten */
        }
        CHECK_EQ(arena->clocks.stream_count, 0);
        fake_mode(FAKE_STEPPED);
        void *blocks[] = {kit_alloc(arena, MIB, kit_stream[i]), kit_alloc(arena, 1, kit_stream[i])};
        CHECK_EQ(fake_write(kit_stream[i], "work", blocks[0], 512, 1), cudaSuccess);
        CHECK_RESULT(gpupool_free(arena, blocks[0], kit_stream[i]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_trim(arena, SIZE_MAX, NULL), GPUPOOL_OK); /* puts a fence behind it */
        CHECK_RESULT(gpupool_free(arena, blocks[1], kit_stream[i]), GPUPOOL_OK);
        written(gpupool_write_json);
        CHECK_EQ(times("\"state\":\"pending\""), 2);
        CHECK_EQ(times("\"state\":\"pending\",\"stream\":null"), 0);
        kit_close(arena);
    }
    fake_mode(FAKE_EAGER);
}

/* A thread's default stream is known by the thread's number. */
static void the_default_stream_of_a_thread(void) {
    open_named("thread", GPUPOOL_SOURCE_DEVICE);
    void *block = kit_alloc(arena, MIB, cudaStreamPerThread);
    written(gpupool_write_svg);
    says(">default stream of thread %llu</text>", (unsigned long long)gpi_host_thread_number());
    CHECK_RESULT(gpupool_free(arena, block, cudaStreamPerThread), GPUPOOL_OK);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(a_small_arena);
    FAKE_TEST(an_arena_elsewhere);
    FAKE_TEST(the_boxes_of_a_legend);
    FAKE_TEST(stripes_of_narrow_blocks);
    FAKE_TEST(parts_of_a_stitched_block);
    FAKE_TEST(a_bar_without_a_limit);
    FAKE_TEST(a_map_of_a_unit_more);
    FAKE_TEST(an_empty_arena);
    FAKE_TEST(reserved_beyond_the_limit);
    FAKE_TEST(chunks_that_touch);
#if !GPUPOOL_SITES
    FAKE_TEST(holders_by_what_they_asked_for);
#endif
    FAKE_TEST(blocks_with_tags);
    FAKE_TEST(a_table_of_tags);
    FAKE_TEST(memory_behind_a_fence);
    FAKE_TEST(lanes_that_were_of_others);
    FAKE_TEST(the_default_stream_of_a_thread);
    return check_finish();
}
