/* What few programs ever ask of a ring, and each may: figures, words, and what is given back. */
#define _DEFAULT_SOURCE
#define GPUPOOL_RING_WORKERS 5
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "ring_kit.h"

#if CHECK_FAKE

#include <errno.h>
#include <sys/mman.h>

/* ---- figures ---- */

/* Each from what it is said to be; a ring that has done nothing yet has none. */
static void figures_of_a_link(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    gpi_stage_clock *clocks[] = {&ring->stage.flying, &ring->arriving};
    for (int way = 0; way < 2; way++) {
        gpupool_ring_stats stats = kit_ring_stats(ring);
        CHECK(stats.gb_per_s[way] == 0 && stats.link_busy[way] == 0);
        ring->under_way[way].ns = 2000000000;
        clocks[way]->ns = 1000000000;
        ring->stats.staged_bytes[way] = 4000000000;
        stats = kit_ring_stats(ring);
        CHECK(stats.gb_per_s[way] > 1.999 && stats.gb_per_s[way] < 2.001);
        CHECK(stats.link_busy[way] > 0.499 && stats.link_busy[way] < 0.501);
        clocks[way]->ns = 3000000000;
        CHECK(kit_ring_stats(ring).link_busy[way] == 1);
        ring->under_way[way].now = 1; /* since a second */
        ring->under_way[way].since_ns = gpi_host_now_ns() - 1000000000;
        stats = kit_ring_stats(ring);
        CHECK(stats.under_way_ns[way] >= 3000000000 && stats.under_way_ns[way] < 60000000000);
        ring->under_way[way].now = 0;
    }
    kit_ring_close(ring);
}

/* Spans are filled when nobody looks: they are no part of what was staged in a time. */
static void spans_are_not_staged_in_time(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(100000);
    gpupool_span span;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 100000, 0, &span), GPUPOOL_OK);
    memset(span.memory, 1, 100000);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]), GPUPOOL_OK);
    ring->under_way[GPUPOOL_UP].ns = 1000000000;
    gpupool_ring_stats stats = kit_ring_stats(ring);
    CHECK_EQ(stats.staged_bytes[GPUPOOL_UP], 100000);
    CHECK(stats.gb_per_s[GPUPOOL_UP] == 0);
    kit_device_free(device, 100000);
    kit_ring_close(ring);
}

/* A transfer of one chunk sets out, and arrives. */
static void one_chunk_is_under_way(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(40000), *host = kit_host(40000);
    CHECK_RESULT(gpupool_upload(ring, device, host, 40000, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).staged_bytes[GPUPOOL_UP], 40000);
    CHECK_EQ(ring->under_way[GPUPOOL_UP].now, 0);
    kit_host_free(host, 40000);
    kit_device_free(device, 40000);
    kit_ring_close(ring);
}

/* Nothing arrives any more when a download is over, however it ended; it waited for no slot. */
static void nothing_arrives_after_the_end(void) {
    size_t bytes = 300 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(bytes), *host = kit_host(bytes);
    for (int fails = 0; fails < 2; fails++) {
        check_case("fails %d", fails);
        if (fails) fake_fail_call("cuMemcpyAsync", 2, 0, 0);
        CHECK_RESULT(gpupool_download(ring, host, device, bytes, kit_stream[0]),
                     fails ? GPUPOOL_E_CUDA : GPUPOOL_OK);
        CHECK_EQ(fake_fail_fired(), fails);
        CHECK_EQ(ring->arriving.now, 0);
        CHECK_EQ(ring->under_way[GPUPOOL_DOWN].now, 0);
        CHECK_EQ(kit_ring_stats(ring).wait_ns, 0);
    }
    fake_fail_clear();
    kit_host_free(host, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* Of rows with gaps, a chunk is whole rows, or a part of one, and no more than a chunk. */
static void chunks_of_rows(void) {
    static const uint64_t widths[] = {1, 100, 65535, 65536, 65537, 1000000};
    gpupool_ring *ring = kit_ring(8 * MIB, 64 * KIB, 0);
    for (size_t i = 0; i < KIT_COUNT(widths); i++) {
        uint64_t width = widths[i], most = 64 * KIB;
        gpi_transfer plan = gpi_send_plan("", ring, ring, width, 0);
        check_case("width %llu", (unsigned long long)width);
        plan.bytes = width * (1 + 4000000 / width);
        while (plan.cursor < plan.bytes) {
            uint64_t bytes = gpi_ring_chunk(ring, &plan, UINT64_MAX);
            uint64_t fewer = gpi_ring_chunk(ring, &plan, 4096);
            if (!CHECK(bytes > 0 && bytes <= most) || !CHECK(fewer > 0 && fewer <= 4096)) break;
            CHECK(bytes % width == 0 || plan.cursor % width + bytes <= width);
            CHECK(fewer % width == 0 || plan.cursor % width + fewer <= width);
            plan.cursor += bytes;
        }
        CHECK_EQ(plan.cursor, plan.bytes);
    }
    kit_ring_close(ring);
}

/* Of a file, each chunk but the last ends where a page of the file does, however many share. */
static void chunks_of_a_file(void) {
    gpupool_ring *ring = kit_ring(64 * MIB, 0, 0);
    for (int workers = 0; workers < 4; workers++)
        for (uint64_t from = 0; from < 2000; from += 1000) {
            gpi_transfer plan = gpi_send_plan("", ring, ring, 64 * MIB, 0);
            check_case("%d workers, from byte %d", workers, (int)from);
            ring->workers_running = workers;
            plan.bytes = plan.width;
            plan.is_file = 1;
            plan.file_offset = from;
            while (plan.cursor < plan.bytes) {
                uint64_t bytes = gpi_ring_chunk(ring, &plan, UINT64_MAX);
                if (!CHECK(bytes > 0)) break;
                plan.cursor += bytes;
                CHECK((from + plan.cursor) % GPI_PAGE_BYTES == 0 || plan.cursor == plan.bytes);
            }
            CHECK_EQ(plan.cursor, plan.bytes);
        }
    ring->workers_running = 0;
    kit_ring_close(ring);
}

/* From any byte on, over the ends of rows, and nothing of what lies between them. */
static void bytes_of_rows(void) {
    enum { WIDTH = 10, PITCH = 16, FROM = 3, BYTES = 20 };
    unsigned char rows[3 * PITCH], line[BYTES];
    gpi_transfer plan = gpi_send_plan("", rows, rows, WIDTH, 0);
    plan.host_pitch = PITCH;
    plan.bytes = 3 * WIDTH;
    plan.down = 1;
    memset(rows, 0xee, sizeof rows);
    for (int i = 0; i < BYTES; i++) line[i] = (unsigned char)i;
    gpi_ring_move_rows(&plan, line, FROM, BYTES);
    for (int at = 0; at < 3 * PITCH; at++) {
        int byte = at / PITCH * WIDTH + at % PITCH - FROM;
        int moved = at % PITCH < WIDTH && byte >= 0 && byte < BYTES;
        CHECK_EQ(rows[at], moved ? byte : 0xee);
    }
    memset(line, 0, sizeof line);
    plan.down = 0;
    gpi_ring_move_rows(&plan, line, FROM, BYTES);
    for (int i = 0; i < BYTES; i++) CHECK_EQ(line[i], i);
}

/* The first chunk and the last are small; a chunk is no more than what each thread has had so far,
   and than half of what it has yet to do. */
static void chunks_grow_and_shrink(void) {
    static const struct { int threads; size_t at, bytes; } cases[] = {
        {1, 0, 256 * KIB},           {1, MIB, MIB},                 {1, 8 * MIB, 2 * MIB},
        {4, 0, 256 * KIB},           {4, 4 * MIB, MIB},             {4, 16 * MIB, 2 * MIB},
        {4, 64 * MIB - 12 * MIB, 3 * MIB / 2}, {4, 63 * MIB, 128 * KIB}, {1, 63 * MIB, 512 * KIB}};
    gpupool_ring *ring = kit_ring(64 * MIB, 0, 0);
    gpi_transfer plan = gpi_send_plan("", ring, ring, 64 * MIB, 0);
    plan.bytes = plan.width;
    for (size_t i = 0; i < KIT_COUNT(cases); i++) {
        check_case("%d threads, at %zu", cases[i].threads, cases[i].at);
        ring->workers_running = cases[i].threads - 1;
        plan.cursor = cases[i].at;
        CHECK_EQ(gpi_ring_chunk(ring, &plan, UINT64_MAX), cases[i].bytes);
    }
    ring->workers_running = 0;
    kit_ring_close(ring);
}

/* Four slots of a stream are enough, and 24 MiB at least: of its own, and of those that fly. */
static void enough_of_a_stream(void) {
    static const struct { uint64_t slot, flying, last; int enough; } cases[] = {
        {8 * MIB, 4, 8 * MIB, 1}, {8 * MIB, 4, 8 * MIB - 1, 0}, {8 * MIB, 3, 8 * MIB, 0},
        {2 * MIB, 12, 2 * MIB, 1}, {2 * MIB, 12, 2 * MIB - 1, 0}};
    static gpi_stage_slot slots[12];
    static gpupool_ring ring;
    gpi_transfer plan = gpi_send_plan("", slots, slots, MIB, kit_stream[0]);
    ring.stage.slots = slots;
    for (size_t i = 0; i < KIT_COUNT(cases); i++) {
        check_case("case %zu", i);
        ring.stage.slot_bytes = cases[i].slot;
        ring.stage.top = cases[i].flying;
        for (uint64_t k = 0; k < cases[i].flying; k++) {
            slots[k].state = GPI_STAGE_FLYING;
            slots[k].run = 1;
            slots[k].key = gpi_ring_key(kit_stream[0]);
            slots[k].length = cases[i].slot;
        }
        slots[cases[i].flying - 1].length = cases[i].last;
        CHECK_EQ(gpi_ring_is_ahead(&ring, &plan), cases[i].enough);
        slots[0].key = gpi_ring_key(kit_stream[1]);
        CHECK_EQ(gpi_ring_is_ahead(&ring, &plan), 0);
        slots[0].key = gpi_ring_key(kit_stream[0]);
        slots[0].state = GPI_STAGE_FILLING;
        CHECK_EQ(gpi_ring_is_ahead(&ring, &plan), 0);
    }
}

/* ---- words ---- */

static int no_read(void *to, size_t bytes, uint64_t offset, void *user) {
    (void)to, (void)bytes, (void)offset, (void)user;
    return 7;
}
static int no_write(const void *from, size_t bytes, uint64_t offset, void *user) {
    (void)from, (void)bytes, (void)offset, (void)user;
    return 8;
}

static void which_function_it_was(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB);
    CHECK_RESULT(kit_upload_from(ring, device, MIB, no_read, NULL, kit_stream[0]),
                 GPUPOOL_E_CALLBACK);
    CHECK(strstr(gpupool_last_error(), "read function returned 7 at byte 0") != NULL);
    CHECK_EQ(kit_ring_stats(ring).used.now, 0);
    CHECK_RESULT(kit_upload_from(ring, device, 1, no_read, NULL, kit_stream[0]),
                 GPUPOOL_E_CALLBACK); /* nor is a little copied without it */
    CHECK_RESULT(kit_download_to(ring, device, MIB, no_write, NULL, kit_stream[0]),
                 GPUPOOL_E_CALLBACK);
    CHECK(strstr(gpupool_last_error(), "write function returned 8 at byte 0") != NULL);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* Rows with gaps are copied by another call than one row. */
static void which_copy_it_was(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB), *host = kit_host(MIB);
    for (size_t rows = 1; rows < 4; rows++) {
        const char *call = rows > 1 ? "cuMemcpy2DAsync" : "cuMemcpyAsync";
        check_case("%zu rows", rows);
        fake_fail_call(call, 1, 1, 0);
        CHECK_RESULT(kit_upload_2d(ring, device, 8192, host, 8192, 4000, rows, kit_stream[0]),
                     GPUPOOL_E_CUDA);
        fake_fail_clear();
        CHECK(strstr(gpupool_last_error(), call) != NULL);
    }
    kit_host_free(host, MIB);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

static void what_is_wrong_with_a_span(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(1000);
    gpupool_span span;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1000, 0, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, NULL, kit_stream[0]), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "device_dst is NULL") != NULL);
    span.bytes = 1001;
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "span.bytes was set to 0 or raised") != NULL);
    span.bytes = 1000;
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);

    gpupool_span all, more;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &all), GPUPOOL_OK);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &all, NULL, kit_stream[0]), GPUPOOL_E_ARGUMENT);
    /* its own is in the way */
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1000, -1, &more), GPUPOOL_E_TIMEOUT);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &all), GPUPOOL_OK);
    kit_device_free(device, 1000);
    kit_ring_close(ring);
}

/* A product that no 64 bits hold is no small transfer. */
static void rows_beyond_all_memory(void) {
    size_t large = (size_t)1 << 40;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(100), *host = kit_host(100);
    CHECK_RESULT(kit_upload_2d(ring, device, large, host, large, large, large, kit_stream[0]),
                 GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "more than any memory has") != NULL);
    kit_host_free(host, 100);
    kit_device_free(device, 100);
    kit_ring_close(ring);
}

/* ---- where a ring is, and what it leaves ---- */

static void the_device_of_a_ring(void) {
    gpupool_ring_config config;
    gpupool_ring *ring = NULL;
    memset(&config, 0, sizeof config);
    config.device = kit_devices();
    CHECK_RESULT(gpupool_ring_create(&ring, &config), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "config.device") != NULL);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_RESULT(gpupool_ring_create(&ring, NULL), GPUPOOL_OK);
    CHECK_EQ(ring->stage.driver.device, 1);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    kit_ring_close(ring);
}

/* The macro has what the config leaves open. */
static void the_workers_of_a_ring(void) {
    static const struct { int given, wanted; } cases[] = {{0, 5}, {2, 2}, {-1, 0}};
    for (size_t i = 0; i < KIT_COUNT(cases); i++) {
        gpupool_ring_config config;
        gpupool_ring *ring = NULL;
        check_case("%d in the config", cases[i].given);
        memset(&config, 0, sizeof config);
        config.workers = cases[i].given;
        CHECK_RESULT(gpupool_ring_create(&ring, &config), GPUPOOL_OK);
        CHECK_EQ(ring->workers_wanted, cases[i].wanted);
        kit_ring_close(ring);
    }
}

/* Its own two streams, or none. */
static void a_ring_that_cannot_be_made(void) {
    long before = fake_live_objects();
    for (int n = 1; n < 3; n++) {
        gpupool_ring *ring = NULL;
        fake_fail_call("cuStreamCreate", n, 0, 0);
        CHECK(gpupool_ring_create(&ring, NULL) != GPUPOOL_OK);
        CHECK(ring == NULL);
        fake_fail_clear();
        CHECK_EQ(fake_live_objects(), before);
    }
}

/* How many of a stretch's pages are in memory; -1: there is no such stretch. */
static int pages_of(unsigned char *memory, size_t bytes) {
    unsigned char in[256];
    int pages = 0;
    if (mincore(memory, bytes, in) != 0) return -1;
    for (size_t i = 0; i < bytes / 4096; i++) pages += in[i] & 1;
    return pages;
}

/* What is trimmed is the host's again, and the addresses when the ring ends. */
static void memory_that_goes_back(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB), *host = kit_host(MIB), *memory;
    CHECK_RESULT(gpupool_upload(ring, device, host, MIB, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    memory = ring->stage.pages.memory;
    CHECK(pages_of(memory, MIB) > 0);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK);
    CHECK_EQ(pages_of(memory, MIB), 0);
    kit_ring_close(ring);
    CHECK_EQ(pages_of(memory, MIB), -1);
    kit_host_free(host, MIB);
    kit_device_free(device, MIB);
}

/* What the host can see, though the device has it, is the host's. */
static void kinds_of_memory(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB), *host = kit_host(MIB);
    void *pinned = NULL, *managed = NULL;
    CHECK_EQ(cudaHostAlloc(&pinned, MIB, 0), cudaSuccess);
    CHECK_EQ(cudaMallocManaged(&managed, MIB, cudaMemAttachGlobal), cudaSuccess);
    const struct { const void *at; gpi_memory_kind kind; } known[] = {
        {host, GPI_MEMORY_ORDINARY}, {pinned, GPI_MEMORY_PINNED},
        {managed, GPI_MEMORY_PINNED}, {device, GPI_MEMORY_DEVICE}};
    for (size_t i = 0; i < KIT_COUNT(known); i++) {
        gpi_memory_kind kind = GPI_MEMORY_ORDINARY;
        CHECK_RESULT(gpi_data_kind(&ring->stage.driver, known[i].at, &kind), GPUPOOL_OK);
        CHECK_EQ(kind, known[i].kind);
    }
    CHECK_EQ(cudaFree(managed), cudaSuccess);
    CHECK_EQ(cudaFreeHost(pinned), cudaSuccess);
    kit_host_free(host, MIB);
    kit_device_free(device, MIB);
    kit_ring_close(ring);
}

/* Host memory of which only the end is pinned is staged. */
static void pinned_at_its_end(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(64 * KIB);
    unsigned char *host = (unsigned char *)aligned_alloc(4096, 64 * KIB);
    if (!CHECK(host != NULL)) return;
    kit_pattern(host, 64 * KIB, 5);
    CHECK_EQ(cudaHostRegister(host + 32 * KIB, 32 * KIB, 0), cudaSuccess);
    CHECK_RESULT(gpupool_upload(ring, device, host, 64 * KIB, kit_stream[0]), GPUPOOL_OK);
    kit_expect_device(device, 64 * KIB, 5);
    CHECK_EQ(kit_ring_stats(ring).staged_bytes[GPUPOOL_UP], 64 * KIB);
    CHECK_EQ(cudaHostUnregister(host + 32 * KIB), cudaSuccess);
    free(host);
    kit_device_free(device, 64 * KIB);
    kit_ring_close(ring);
}

/* Rows go directly if they end where pinned memory ends, and are staged if the last is beyond. */
static void rows_to_the_end_of_what_is_pinned(void) {
    enum { WIDTH = 1000, PITCH = 1024, ROWS = 32 };
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(64 * KIB);
    unsigned char *host = (unsigned char *)aligned_alloc(4096, 64 * KIB);
    if (!CHECK(host != NULL)) return;
    kit_pattern(host, 64 * KIB, 6);
    CHECK_EQ(cudaHostRegister(host, ROWS * PITCH, 0), cudaSuccess);
    for (int beyond = 0; beyond < 2; beyond++) {
        size_t rows = ROWS + (size_t)beyond;
        CHECK_RESULT(kit_upload_2d(ring, device, PITCH, host, PITCH, WIDTH, rows, kit_stream[0]),
                     GPUPOOL_OK);
        unsigned char *copy = kit_fetch(device, rows * PITCH);
        kit_is_pattern(copy + (rows - 1) * PITCH, WIDTH, 6, (rows - 1) * PITCH);
        free(copy);
        CHECK_EQ(kit_ring_stats(ring).direct_bytes[GPUPOOL_UP], WIDTH * ROWS);
    }
    CHECK_EQ(kit_ring_stats(ring).staged_bytes[GPUPOOL_UP], WIDTH * (ROWS + 1));
    CHECK_EQ(cudaHostUnregister(host), cudaSuccess);
    free(host);
    kit_device_free(device, 64 * KIB);
    kit_ring_close(ring);
}

/* Rows without gaps are one, and a little of that is left to CUDA. With a ticket it is not, since
   CUDA might have to wait. */
static void a_little_by_each_way(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(1000), *host = kit_host(1000);
    gpupool_ticket ticket;
    kit_pattern(host, 1000, 7);
    CHECK_RESULT(kit_upload_2d(ring, device, 100, host, 100, 100, 10, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).direct_bytes[GPUPOOL_UP], 1000);
    kit_expect_device(device, 1000, 7);
    fake_hold(kit_stream[0], 1);
    CHECK_EQ(cudaMemsetAsync(device, 1, 1000, kit_stream[0]), cudaSuccess);
    CHECK_RESULT(kit_download_async(ring, host, device, 1000, kit_stream[0], &ticket), GPUPOOL_OK);
    CHECK(fake_pending(kit_stream[0]) > 0);
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
    kit_is_byte(host, 1000, 1);
    CHECK_EQ(kit_ring_stats(ring).staged_bytes[GPUPOOL_DOWN], 1000);
    kit_host_free(host, 1000);
    kit_device_free(device, 1000);
    kit_ring_close(ring);
}
#endif

int main(void) {
    FAKE_TEST(figures_of_a_link);
    FAKE_TEST(spans_are_not_staged_in_time);
    FAKE_TEST(one_chunk_is_under_way);
    FAKE_TEST(nothing_arrives_after_the_end);
    FAKE_TEST(chunks_of_rows);
    FAKE_TEST(chunks_of_a_file);
    FAKE_TEST(bytes_of_rows);
    FAKE_TEST(chunks_grow_and_shrink);
    FAKE_TEST(enough_of_a_stream);
    FAKE_TEST(which_function_it_was);
    FAKE_TEST(which_copy_it_was);
    FAKE_TEST(what_is_wrong_with_a_span);
    FAKE_TEST(rows_beyond_all_memory);
    FAKE_TEST(the_device_of_a_ring);
    FAKE_TEST(the_workers_of_a_ring);
    FAKE_TEST(a_ring_that_cannot_be_made);
    FAKE_TEST(memory_that_goes_back);
    FAKE_TEST(kinds_of_memory);
    FAKE_TEST(pinned_at_its_end);
    FAKE_TEST(rows_to_the_end_of_what_is_pinned);
    FAKE_TEST(a_little_by_each_way);
    return check_finish();
}
