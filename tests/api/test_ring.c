/* The staging ring's contract: every way of a transfer, every size, every pointer; stream order;
   what is pinned.

// build: plain
// build: check2 -O1 -DGPUPOOL_CHECK=2
// build: single -DGPUPOOL_SINGLE_THREAD=1 -DGPUPOOL_CHECK=2
// build: asan -fsanitize=address,undefined
*/
#include "gpupool.h"
#include "linked.h"
#include "ring_kit.h"

#include <math.h>

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


/* ---- stream order ---- */

static void upload_comes_after_what_was_queued(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 2);
    for (size_t bytes = 1000; bytes < MIB; bytes *= 30) {
        unsigned char *from = kit_host(bytes), *device = kit_device(bytes);
        kit_pattern(from, bytes, 1);
        kit_fill(kit_stream[0], device, bytes, 0x11);
        CHECK_RESULT(gpupool_upload(ring, device, from, bytes, kit_stream[0]), GPUPOOL_OK);
        kit_expect_device(device, bytes, 1);
        kit_host_free(from, bytes);
        kit_device_free(device, bytes);
    }
    kit_ring_close(ring);
}

#if CHECK_FAKE
/* The stream stands still while the upload is queued, so that only order can make this right. */
static void held_stream_keeps_the_order(void) {
    size_t bytes = 400000;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *from = kit_host(bytes), *device = kit_device(bytes);
    kit_pattern(from, bytes, 7);
    fake_hold(kit_stream[0], 1);
    kit_fill(kit_stream[0], device, bytes, 0x22);
    CHECK_RESULT(gpupool_upload(ring, device, from, bytes, kit_stream[0]), GPUPOOL_OK);
    memset(from, 0xee, bytes); /* may be changed, though nothing has run */
    CHECK(fake_pending(kit_stream[0]) > 2);
    kit_fill(kit_stream[0], device, 100, 0x33);
    fake_hold(kit_stream[0], 0);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
    unsigned char *copy = kit_fetch(device, bytes);
    kit_is_byte(copy, 100, 0x33);
    kit_is_pattern(copy + 100, bytes - 100, 7, 100);
    free(copy);
    kit_host_free(from, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* Chunks in flight at the same time, and no more events than chunks. */
static void chunks_overlap(void) {
    size_t bytes = MIB;
    gpupool_ring *ring = kit_ring(4 * MIB, 64 * KIB, 0);
    unsigned char *from = kit_host(bytes), *device = kit_device(bytes);
    fake_hold(kit_stream[0], 1);
    fake_reset_counters();
    CHECK_RESULT(gpupool_upload(ring, device, from, bytes, kit_stream[0]), GPUPOOL_OK);
    CHECK(fake_calls("cuMemcpyAsync") >= 8);
    CHECK_EQ(fake_calls("cuEventRecord"), fake_calls("cuMemcpyAsync"));
    CHECK_EQ(fake_pending(kit_stream[0]), 2 * fake_calls("cuMemcpyAsync"));
    CHECK_EQ(kit_ring_stats(ring).chunks[GPUPOOL_UP], fake_calls("cuMemcpyAsync"));
    fake_hold(kit_stream[0], 0);
    kit_host_free(from, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}
#endif

/* A thread empties a chunk that it downloads while the next one comes: it needs two slots. */
static void a_download_takes_two_slots_a_thread(void) {
    size_t bytes = 3 * MIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *to = kit_host(bytes), *device = kit_device(bytes);
    kit_fill(kit_stream[0], device, bytes, 0xee);
    CHECK_RESULT(gpupool_download(ring, to, device, bytes, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).used.peak, MIB / 2);
    CHECK_EQ(kit_ring_stats(ring).waits, 0);
    CHECK_EQ(kit_ring_stats(ring).slow_chunks, 0);
    kit_is_byte(to, bytes, 0xee);
    kit_host_free(to, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* ---- which pointers ---- */

static void known_memory_goes_directly(void) {
    size_t bytes = 300000;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(bytes), *other = kit_device(bytes), *pinned, *managed;
    unsigned char *own = (unsigned char *)aligned_alloc(4096, 303104);
    CHECK_EQ(cudaHostAlloc((void **)&pinned, bytes, cudaHostAllocDefault), cudaSuccess);
    CHECK_EQ(cudaMallocManaged((void **)&managed, bytes, cudaMemAttachGlobal), cudaSuccess);
    CHECK_EQ(cudaHostRegister(own, 303104, cudaHostRegisterDefault), cudaSuccess);
    unsigned char *hosts[3] = {pinned, managed, own};
    for (uint64_t i = 0; i < 3; i++) {
        kit_pattern(hosts[i], bytes, i);
        CHECK_RESULT(gpupool_upload(ring, device, hosts[i], bytes, kit_stream[0]), GPUPOOL_OK);
        memset(hosts[i], 0, bytes); /* done with, even so */
        CHECK_RESULT(gpupool_download(ring, hosts[i], device, bytes, kit_stream[0]), GPUPOOL_OK);
        kit_is_pattern(hosts[i], bytes, i, 0);
        kit_expect_device(device, bytes, i);
    }
    CHECK_RESULT(gpupool_upload(ring, other, device, bytes, kit_stream[0]), GPUPOOL_OK);
    kit_expect_device(other, bytes, 2);
    CHECK_EQ(kit_ring_stats(ring).direct_bytes[GPUPOOL_UP], 4 * bytes);
    CHECK_EQ(kit_ring_stats(ring).pinned.peak, 0);
    CHECK_EQ(cudaHostUnregister(own), cudaSuccess);
    CHECK_EQ(cudaFreeHost(pinned), cudaSuccess);
    CHECK_EQ(cudaFree(managed), cudaSuccess);
    free(own);
    kit_device_free(device, bytes);
    kit_device_free(other, bytes);
    kit_ring_close(ring);
}

/* CUDA refuses a copy that leaves its registration; the ring takes it. */
static void memory_registered_in_part_is_staged(void) {
    size_t page = 65536, bytes = 3 * page, staged;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *own = (unsigned char *)aligned_alloc(page, bytes), *device = kit_device(bytes);
    for (int parts = 1; parts <= 7; parts++) {
        check_case("registered parts %d", parts);
        for (int i = 0; i < 3; i++)
            if (parts >> i & 1)
                CHECK_EQ(cudaHostRegister(own + (size_t)i * page, page, 0), cudaSuccess);
        kit_pattern(own, bytes, (uint64_t)parts);
        staged = kit_ring_stats(ring).staged_bytes[GPUPOOL_UP];
        CHECK_RESULT(gpupool_upload(ring, device, own, bytes, kit_stream[0]), GPUPOOL_OK);
        if (parts == 5) CHECK_EQ(kit_ring_stats(ring).staged_bytes[GPUPOOL_UP], staged + bytes);
        kit_expect_device(device, bytes, (uint64_t)parts);
        CHECK_RESULT(kit_upload_2d(ring, device, page / 4, own, page / 2, page / 4, 6,
                                       kit_stream[0]), GPUPOOL_OK); /* no row is in two parts */
        CHECK_RESULT(kit_download_2d(ring, own, page / 2, device, page / 4, page / 4, 6,
                                         kit_stream[0]), GPUPOOL_OK);
        kit_is_pattern(own, bytes, (uint64_t)parts, 0);
        CHECK_RESULT(gpupool_upload(ring, device, own, bytes, kit_stream[0]), GPUPOOL_OK);
        memset(own, 0, bytes);
        CHECK_RESULT(gpupool_download(ring, own, device, bytes, kit_stream[0]), GPUPOOL_OK);
        kit_is_pattern(own, bytes, (uint64_t)parts, 0);
        for (int i = 0; i < 3; i++)
            if (parts >> i & 1)
                CHECK_EQ(cudaHostUnregister(own + (size_t)i * page), cudaSuccess);
    }
    free(own);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* ---- rows ---- */

static void rows_with_pitches(void) {
    static const struct { size_t width, height, host_pitch, device_pitch; } shapes[] = {
        {1, 1, 1, 1},                  {7, 1000, 7, 512},     {100, 33, 128, 100},
        {4096, 300, 4096, 4096},       {1, 3000, 3, 5},       {70000, 5, 70001, 70656},
        {300000, 3, 300000, 300032},   {513, 999, 600, 1024}, {600, 2, 700, 1024},
    };
    gpupool_ring *ring = kit_ring(512 * KIB, 0, 2);
    for (size_t i = 0; i < KIT_COUNT(shapes); i++) {
        size_t w = shapes[i].width, h = shapes[i].height, hp = shapes[i].host_pitch;
        size_t dp = shapes[i].device_pitch, host_bytes = hp * h, device_bytes = dp * h;
        unsigned char *from = kit_host(host_bytes), *to = kit_host(host_bytes);
        unsigned char *device = kit_device(device_bytes);
        check_case("%zu x %zu, pitches %zu and %zu", w, h, hp, dp);
        kit_pattern(from, host_bytes, i);
        CHECK_RESULT(kit_upload_2d(ring, device, dp, from, hp, w, h, kit_stream[1]),
                     GPUPOOL_OK);
        unsigned char *copy = kit_fetch(device, device_bytes);
        for (size_t y = 0; y < h; y++) {
            kit_is_pattern(copy + y * dp, w, i, y * hp);
            kit_is_byte(copy + y * dp + w, dp - w, 0xdd);
        }
        free(copy);
        CHECK_RESULT(kit_download_2d(ring, to, hp, device, dp, w, h, kit_stream[1]),
                     GPUPOOL_OK);
        for (size_t y = 0; y < h; y++) {
            kit_is_pattern(to + y * hp, w, i, y * hp);
            kit_is_byte(to + y * hp + w, hp - w, 0xee);
        }
        memset(from, 0xee, host_bytes);
        kit_host_free(from, host_bytes);
        kit_host_free(to, host_bytes);
        kit_device_free(device, device_bytes);
    }
    kit_ring_close(ring);
}

/* The pitch of a single row leads nowhere, however long. */
static void a_single_row(void) {
    gpupool_ring *ring = kit_ring(512 * KIB, 0, 0);
    unsigned char *from = kit_host(100), *device = kit_device(100);
    kit_pattern(from, 100, 3);
    CHECK_RESULT(kit_upload_2d(ring, device, 100, from, PTRDIFF_MAX, 100, 1, kit_stream[1]),
                 GPUPOOL_OK);
    kit_expect_device(device, 100, 3);
    kit_host_free(from, 100);
    kit_device_free(device, 100);
    kit_ring_close(ring);
}

/* ---- functions in the caller's place ---- */

typedef struct source {
    uint64_t seed, next, bytes; /* next: where a source that is read in order is at */
    uint64_t refuse_at;         /* the part that has this byte is refused */
    unsigned char *seen;        /* a download's bytes */
    atomic_llong done;
} source;

static int bring(void *to, size_t bytes, uint64_t offset, void *user) {
    source *s = (source *)user;
    if (s->refuse_at >= offset && s->refuse_at < offset + bytes) return 42;
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)to)[i] = kit_byte(s->seed, (size_t)offset + i);
    atomic_fetch_add(&s->done, (long long)bytes);
    return 0;
}

static int bring_in_order(void *to, size_t bytes, uint64_t offset, void *user) {
    source *s = (source *)user;
    CHECK_EQ(offset, s->next);
    s->next = offset + bytes;
    return bring(to, bytes, offset, user);
}

static int take_away(const void *from, size_t bytes, uint64_t offset, void *user) {
    source *s = (source *)user;
    if (s->refuse_at >= offset && s->refuse_at < offset + bytes) return -7;
    memmove(s->seen + offset, from, bytes);
    atomic_fetch_add(&s->done, (long long)bytes);
    return 0;
}

static void functions_fill_and_empty(void) {
    size_t bytes = 3 * MIB + 5;
    for (int workers = 0; workers <= 3; workers += 3) {
        gpupool_ring *ring = kit_ring(MIB, 0, workers);
        unsigned char *device = kit_device(bytes);
        source s = {9, 0, bytes, UINT64_MAX, kit_host(bytes), 0};
        CHECK_RESULT(kit_upload_from(ring, device, bytes, workers ? bring : bring_in_order, &s,
                                         kit_stream[0]), GPUPOOL_OK);
        CHECK_EQ(atomic_load(&s.done), bytes);
        kit_expect_device(device, bytes, 9);
        CHECK_RESULT(kit_download_to(ring, device, bytes, take_away, &s, kit_stream[0]),
                     GPUPOOL_OK);
        kit_is_pattern(s.seen, bytes, 9, 0);
        s.refuse_at = MIB;
        CHECK_RESULT(kit_upload_from(ring, device, bytes, bring, &s, kit_stream[0]),
                     GPUPOOL_E_CALLBACK);
        CHECK(strstr(gpupool_last_error(), "returned 42") != NULL);
        CHECK_RESULT(kit_download_to(ring, device, bytes, take_away, &s, kit_stream[0]),
                     GPUPOOL_E_CALLBACK);
        s.refuse_at = UINT64_MAX;
        CHECK_RESULT(kit_upload_from(ring, device, bytes, bring, &s, kit_stream[0]),
                     GPUPOOL_OK);
        kit_host_free(s.seen, bytes);
        kit_device_free(device, bytes);
        kit_ring_close(ring);
    }
}

/* ---- what is pinned ---- */

/* Uploads, and returns how many workers there are then. They end after a second without work: on a
   machine that stands still for so long, the upload is done again. */
static uint64_t workers_after(gpupool_ring *ring, void *device, const void *from, size_t bytes) {
    uint64_t workers = 0;
    for (int tries = 0; tries < 5; tries++) {
        uint64_t start = linked_now_ns();
        CHECK_RESULT(gpupool_upload(ring, device, from, bytes, kit_stream[0]), GPUPOOL_OK);
        workers = kit_ring_stats(ring).workers;
        if (linked_now_ns() - start < KIT_SECOND / 2) break;
    }
    return workers;
}

static void pinned_memory_is_bounded_and_lazy(void) {
    size_t bytes = 20 * MIB, most = 10 * MIB + 4096;
    gpupool_ring *ring = kit_ring(most, MIB, 1);
    unsigned char *from = kit_host(bytes), *device = kit_device(bytes);
    size_t released = 0;
    CHECK_EQ(kit_ring_stats(ring).pinned.now, 0);
    CHECK_RESULT(gpupool_upload(ring, device, from, 100, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).pinned.now, 0);
    CHECK_RESULT(gpupool_upload(ring, device, from, 100000, kit_stream[0]), GPUPOOL_OK);
    CHECK(kit_ring_stats(ring).pinned.now > 0 && kit_ring_stats(ring).pinned.now < most / 2);
    CHECK_EQ(kit_ring_stats(ring).workers, 0);
    CHECK_EQ(workers_after(ring, device, from, bytes), GPUPOOL_SINGLE_THREAD ? 0 : 1);
    CHECK(kit_ring_stats(ring).pinned.peak <= most);
#if CHECK_FAKE
    CHECK(fake_pinned_peak() <= most);
    CHECK_EQ(fake_pinned_bytes(), kit_ring_stats(ring).pinned.now);
#endif
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, &released), GPUPOOL_OK);
    CHECK(released > 0);
    CHECK_EQ(kit_ring_stats(ring).pinned.now, 0);
    kit_pattern(from, bytes, 3);
    CHECK_RESULT(gpupool_upload(ring, device, from, bytes, kit_stream[0]), GPUPOOL_OK);
    kit_expect_device(device, bytes, 3);
    memset(from, 0xee, bytes);
    kit_host_free(from, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* ---- capture ---- */

static void capturing_streams_are_refused(void) {
    size_t sizes_tried[] = {100, 100000, 3 * MIB};
    gpupool_ring *ring = kit_ring(MIB, 0, 2);
    unsigned char *from = kit_host(3 * MIB), *device = kit_device(3 * MIB);
    gpupool_ticket ticket = 0;
    gpupool_span span;
    cudaGraph_t graph = NULL;
    CHECK_RESULT(gpupool_ring_acquire_span(ring, 1000, 0, &span), GPUPOOL_OK);
    memset(span.memory, 0, 1000);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    for (size_t i = 0; i < 3; i++) {
        size_t n = sizes_tried[i];
        CHECK_RESULT(gpupool_upload(ring, device, from, n, kit_stream[0]), GPUPOOL_E_CAPTURING);
        CHECK_RESULT(gpupool_download(ring, from, device, n, kit_stream[0]), GPUPOOL_E_CAPTURING);
        CHECK_RESULT(kit_upload_async(ring, device, from, n, kit_stream[0], &ticket),
                     GPUPOOL_E_CAPTURING);
        /* another stream is served while that one captures, and its capture is not lost */
        CHECK_RESULT(gpupool_upload(ring, device, from, n, kit_stream[1]), GPUPOOL_OK);
        CHECK_RESULT(gpupool_download(ring, from, device, n, kit_stream[1]), GPUPOOL_OK);
    }
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]), GPUPOOL_E_CAPTURING);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    memset(from, 0xee, 3 * MIB);
    kit_host_free(from, 3 * MIB);
    kit_device_free(device, 3 * MIB);
    kit_ring_close(ring);
}

static void without_threads_workers_are_few(void) {
    size_t bytes = 40 * MIB;
    gpupool_ring *ring = kit_ring(64 * MIB, 0, 8);
    unsigned char *from = kit_host(bytes), *device = kit_device(bytes);
    kit_pattern(from, bytes, 9);
    CHECK_EQ(workers_after(ring, device, from, bytes), GPUPOOL_SINGLE_THREAD ? 0 : 8);
    kit_expect_device(device, bytes, 9);
    CHECK(kit_ring_stats(ring).chunks[GPUPOOL_UP] >= 20); /* of 2 MiB at most */
    kit_host_free(from, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* ---- what is told ---- */

#if CHECK_FAKE
static void let_ms_pass(uint64_t ms) {
    for (uint64_t end = linked_now_ns() + ms * 1000000; linked_now_ns() < end;) continue;
}

static void take_a_ms(void *unused) {
    (void)unused;
    let_ms_pass(1);
}
#endif

static void statistics_add_up(void) {
    uint64_t started = linked_now_ns(), passed;
#if CHECK_FAKE
    fake_before_call("cuMemHostRegister", 1, take_a_ms, NULL); /* the clock may tick in us */
#endif
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *from = kit_host(2 * MIB), *device = kit_device(2 * MIB);
    CHECK_RESULT(gpupool_upload(ring, device, from, 1000, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload(ring, device, from, 2 * MIB, kit_stream[0]), GPUPOOL_OK);
    CHECK_RESULT(gpupool_download(ring, from, device, 2 * MIB, kit_stream[0]), GPUPOOL_OK);
    gpupool_ring_stats stats = kit_ring_stats(ring);
    passed = linked_now_ns() - started;
    CHECK_EQ(stats.struct_bytes, sizeof stats);
    CHECK_EQ(stats.limit_bytes, MIB);
    CHECK_EQ(stats.transfers[0], 2);
    CHECK_EQ(stats.transfers[1], 1);
    CHECK_EQ(stats.direct_bytes[0], 1000);
    CHECK_EQ(stats.staged_bytes[0], 2 * MIB);
    CHECK_EQ(stats.staged_bytes[1], 2 * MIB);
    CHECK(stats.chunks[0] >= 8 && stats.chunks[1] >= 8);
    CHECK(stats.used.peak <= stats.pinned.peak && stats.pinned.peak <= MIB);
    CHECK(stats.pin_ns > 0 && stats.under_way_ns[0] > 0 && stats.under_way_ns[1] > 0);
    CHECK(stats.pin_ns <= passed);
    CHECK(stats.under_way_ns[0] + stats.under_way_ns[1] <= passed);
    for (int way = 0; way < 2; way++) {
        double ns = (double)stats.under_way_ns[way], busy = (double)stats.link_busy_ns[way] / ns;
        check_case("way %d", way);
        CHECK(fabs(stats.gb_per_s[way] * ns / (double)stats.staged_bytes[way] - 1) < 1e-6);
        CHECK(stats.link_busy_ns[way] > 0 && stats.link_busy_ns[way] <= passed);
        CHECK(fabs(stats.link_busy[way] - (busy < 1 ? busy : 1)) < 1e-6);
    }
    memset(from, 0xee, 2 * MIB);
    kit_host_free(from, 2 * MIB);
    kit_device_free(device, 2 * MIB);
    kit_ring_close(ring);
}

#if CHECK_FAKE
static int take_long(void *to, size_t bytes, uint64_t offset, void *unused) {
    (void)offset;
    (void)unused;
    memset(to, 1, bytes);
    let_ms_pass(3);
    return 0;
}

/* The rate is of transfers of a single chunk too, and not of spans, whose filling takes no time of
   the ring's. */
static void the_rate_is_of_what_took_time(void) {
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(MIB / 2);
    gpupool_span span;
    CHECK_RESULT(kit_upload_from(ring, device, 100 * KIB, take_long, NULL, kit_stream[0]),
                 GPUPOOL_OK);
    gpupool_ring_stats before = kit_ring_stats(ring);
    CHECK(before.under_way_ns[0] >= 3000000);
    CHECK(before.gb_per_s[0] > 0 && before.gb_per_s[0] < 100 * KIB / 3e6);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB / 2, 0, &span), GPUPOOL_OK);
    memset(span.memory, 0, span.bytes);
    CHECK_RESULT(gpupool_ring_upload_span(ring, &span, device, kit_stream[0]), GPUPOOL_OK);
    CHECK_EQ(kit_ring_stats(ring).staged_bytes[0], MIB / 2 + 100 * KIB);
    CHECK(kit_ring_stats(ring).gb_per_s[0] <= before.gb_per_s[0]);
    kit_device_free(device, MIB / 2);
    kit_ring_close(ring);
}

/* From the first chunk that is queued until the last is known to have landed. */
static void the_links_time_is_told(void) {
    size_t bytes = 300 * KIB;
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *from = kit_host(bytes), *device = kit_device(bytes);
    uint64_t started = linked_now_ns();
    fake_hold(kit_stream[0], 1);
    CHECK_RESULT(gpupool_upload(ring, device, from, bytes, kit_stream[0]), GPUPOOL_OK);
    let_ms_pass(3);
    gpupool_ring_stats flying = kit_ring_stats(ring);
    CHECK(flying.link_busy_ns[0] >= 3000000);
    CHECK(flying.link_busy_ns[0] <= linked_now_ns() - started);
    fake_hold(kit_stream[0], 0);
    CHECK_RESULT(gpupool_ring_trim(ring, 0, NULL), GPUPOOL_OK); /* looks after them */
    gpupool_ring_stats landed = kit_ring_stats(ring);
    let_ms_pass(3);
    CHECK_EQ(kit_ring_stats(ring).link_busy_ns[0], landed.link_busy_ns[0]);
    CHECK(landed.link_busy_ns[0] >= flying.link_busy_ns[0]);
    CHECK_EQ(landed.link_busy_ns[1], 0);
    CHECK_EQ(landed.under_way_ns[0], flying.under_way_ns[0]);
    kit_host_free(from, bytes);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}
#endif

int main(void) {
    ARENA_TEST(every_size_goes_there_and_back);
    ARENA_TEST(upload_comes_after_what_was_queued);
    FAKE_TEST(held_stream_keeps_the_order);
    FAKE_TEST(chunks_overlap);
    ARENA_TEST(a_download_takes_two_slots_a_thread);
    ARENA_TEST(known_memory_goes_directly);
    ARENA_TEST(memory_registered_in_part_is_staged);
    ARENA_TEST(rows_with_pitches);
    ARENA_TEST(a_single_row);
    ARENA_TEST(functions_fill_and_empty);
    ARENA_TEST(pinned_memory_is_bounded_and_lazy);
    ARENA_TEST(capturing_streams_are_refused);
    ARENA_TEST(without_threads_workers_are_few);
    ARENA_TEST(statistics_add_up);
    FAKE_TEST(the_links_time_is_told);
    FAKE_TEST(the_rate_is_of_what_took_time);
    return check_finish();
}
