/* fuzz_ring.h: transfers of every kind through a small ring without workers, so that the same bytes
   always do the same. Each lane is a stretch of host and of device memory, and a copy of what the
   device's must hold; a transfer with a ticket keeps its lane busy until the ticket was waited for.
   linked.c watches what the ring copies. */
#ifndef FUZZ_RING_H
#define FUZZ_RING_H

#include "ring_kit.h"
#include "fuzz.h"

#define FUZZ_LANES 3
#define FUZZ_LANE_BYTES (512 * KIB)
#define FUZZ_SPANS 3

typedef struct fuzz_lane {
    unsigned char *host, *device, *copy; /* copy: what device must hold */
    unsigned char *expected;             /* what host must hold after a download */
    gpupool_ticket ticket;               /* 0: idle */
    int down;
    size_t at, bytes;                    /* the part of it that the ticket is about */
    size_t touched;                      /* of the lane, from its begin */
    cudaStream_t stream;                 /* of the last work */
} fuzz_lane;

static struct {
    gpupool_ring *ring;
    fuzz_lane lane[FUZZ_LANES];
    gpupool_span span[FUZZ_SPANS]; /* memory NULL: not held */
    int held;                      /* a stream of the test runs nothing */
    int refuse;                    /* the callbacks say no */
    uint64_t seed;
} fr;

/* ---- lanes ---- */

static void fuzz_ring_let_go(void) {
    for (int i = 0; i < KIT_STREAMS; i++) fake_hold(kit_stream[i], 0);
    fr.held = 0;
}

static void fuzz_ring_host_agrees(const fuzz_lane *l) {
    CHECK(memcmp(l->host, l->expected, l->touched) == 0);
}

/* Makes host and device agree with their copies again, after a transfer that failed. */
static void fuzz_ring_mend(fuzz_lane *l, int down, size_t at, size_t bytes) {
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    if (down) memcpy(l->expected + at, l->host + at, bytes);
    else CHECK_EQ(cudaMemcpy(l->device + at, l->copy + at, bytes, cudaMemcpyHostToDevice),
                  cudaSuccess);
}

static void fuzz_ring_ended(fuzz_lane *l, int well, int down, size_t at, size_t bytes) {
    if (!well) fuzz_ring_mend(l, down, at, bytes);
    else if (down) CHECK(memcmp(l->host + at, l->copy + at, bytes) == 0);
    if (down && well) memcpy(l->expected + at, l->copy + at, bytes);
    fuzz_ring_host_agrees(l);
}

/* What an earlier fault may have made of a transfer whose ticket was given. */
#define FUZZ_RING_BROKEN (1u << GPUPOOL_E_CUDA | 1u << GPUPOOL_E_HOST_MEMORY)

/* The lane's ticket is waited for to the end; a wait that failed has not waited. */
static void fuzz_ring_settle(fuzz_lane *l) {
    gpupool_result result;
    if (!l->ticket) return;
    fuzz_ring_let_go();
    if (!FUZZ_TRY(result = gpupool_ring_wait(fr.ring, l->ticket, -1), FUZZ_RING_BROKEN))
        result = gpupool_ring_wait(fr.ring, l->ticket, -1);
    CHECK_RESULT(gpupool_ring_wait(fr.ring, l->ticket, 0), result);
    l->ticket = 0;
    fuzz_ring_ended(l, result == GPUPOOL_OK, l->down, l->at, l->bytes);
}

static fuzz_lane *fuzz_ring_lane(fuzz_step s, cudaStream_t *stream) {
    fuzz_lane *l = &fr.lane[s.a % FUZZ_LANES];
    fuzz_ring_settle(l);
    *stream = kit_stream[s.a / FUZZ_LANES % KIT_STREAMS];
    if (l->stream && l->stream != *stream) kit_order(l->stream, *stream);
    l->stream = *stream;
    return l;
}

/* Fresh bytes in a part of the host's memory; on the device once they are uploaded. */
static void fuzz_ring_fill(fuzz_lane *l, size_t at, size_t bytes) {
    kit_pattern(l->host + at, bytes < 4096 ? bytes : 4096, ++fr.seed);
    if (bytes > 4096) memset(l->host + at + 4096, (int)fr.seed, bytes - 4096);
    memcpy(l->expected + at, l->host + at, bytes);
}

static void fuzz_ring_touches(fuzz_lane *l, size_t end) {
    end = end + KIT_MARGIN < FUZZ_LANE_BYTES ? end + KIT_MARGIN : FUZZ_LANE_BYTES;
    if (l->touched < end) l->touched = end;
}

/* 1 byte to half a MiB less the skew, and where it begins. */
static size_t fuzz_ring_size(fuzz_step s, size_t *at) {
    size_t most = (size_t)((s.c & 31) + 1) << (s.c >> 5) * 2;
    *at = s.b / 4 % 16;
    if (s.b & 2 && most > 1) most--;
    return most > FUZZ_LANE_BYTES - *at ? FUZZ_LANE_BYTES - *at : most;
}

/* ---- transfers ---- */

static int fuzz_ring_read(void *to, size_t bytes, uint64_t offset, void *user) {
    memcpy(to, (unsigned char *)user + offset, bytes);
    return fr.refuse;
}

static int fuzz_ring_write(const void *from, size_t bytes, uint64_t offset, void *user) {
    memcpy((unsigned char *)user + offset, from, bytes);
    return fr.refuse;
}

static void fuzz_ring_copy(fuzz_step s, int down) {
    cudaStream_t stream;
    fuzz_lane *l = fuzz_ring_lane(s, &stream);
    size_t at, bytes = fuzz_ring_size(s, &at);
    unsigned no = fr.refuse && s.b & 1 ? 1u << GPUPOOL_E_CALLBACK : 0u;
    int well;
    fuzz_ring_let_go();
    fuzz_ring_touches(l, at + bytes);
    if (!down) fuzz_ring_fill(l, at, bytes);
    if (down && s.b & 1)
        well = FUZZ_TRY(kit_download_to(fr.ring, l->device + at, bytes, fuzz_ring_write,
                                            l->host + at, stream), no);
    else if (down)
        well = FUZZ_TRY(gpupool_download(fr.ring, l->host + at, l->device + at, bytes, stream), 0);
    else if (s.b & 1)
        well = FUZZ_TRY(kit_upload_from(fr.ring, l->device + at, bytes, fuzz_ring_read,
                                            l->host + at, stream), no);
    else well = FUZZ_TRY(gpupool_upload(fr.ring, l->device + at, l->host + at, bytes, stream), 0);
    if (!down && well) memcpy(l->copy + at, l->host + at, bytes);
    fuzz_ring_ended(l, well, down, at, bytes);
}

static void fuzz_ring_post(fuzz_step s, int down) {
    cudaStream_t stream;
    fuzz_lane *l = fuzz_ring_lane(s, &stream);
    size_t at, bytes = fuzz_ring_size(s, &at);
    fuzz_ring_touches(l, at + bytes);
    if (!down) fuzz_ring_fill(l, at, bytes);
    if (s.b & 1) fake_hold(stream, fr.held = 1);
    if (down ? !FUZZ_TRY(kit_download_async(fr.ring, l->host + at, l->device + at, bytes,
                                                stream, &l->ticket), 0)
             : !FUZZ_TRY(kit_upload_async(fr.ring, l->device + at, l->host + at, bytes, stream,
                                              &l->ticket), 0)) {
        l->ticket = 0;
        fuzz_ring_let_go();
        fuzz_ring_ended(l, 0, down, at, bytes);
        return;
    }
    CHECK(l->ticket != 0);
    l->down = down;
    l->at = at;
    l->bytes = bytes;
    if (!down) memcpy(l->copy + at, l->host + at, bytes);
}

static void fuzz_ring_rows(fuzz_step s, int down) {
    cudaStream_t stream;
    fuzz_lane *l = fuzz_ring_lane(s, &stream);
    size_t width = 1 + (size_t)s.b * 17, height = 1 + s.c % 64u, pitch = width + (s.c >> 6) * 7u;
    size_t whole = pitch * height;
    int well;
    fuzz_ring_let_go();
    fuzz_ring_touches(l, whole);
    if (!down) fuzz_ring_fill(l, 0, whole);
    if (down) well = FUZZ_TRY(kit_download_2d(fr.ring, l->host, pitch, l->device, pitch, width,
                                                  height, stream), 0);
    else well = FUZZ_TRY(kit_upload_2d(fr.ring, l->device, pitch, l->host, pitch, width,
                                           height, stream), 0);
    for (size_t y = 0; y < height && well; y++) {
        unsigned char *to = down ? l->expected : l->copy;
        memcpy(to + y * pitch, (down ? l->copy : l->host) + y * pitch, width);
    }
    if (!well) fuzz_ring_mend(l, down, 0, whole);
    fuzz_ring_host_agrees(l);
}

/* ---- spans ---- */

static void fuzz_ring_acquire(fuzz_step s) {
    gpupool_span *span = &fr.span[s.a % FUZZ_SPANS];
    size_t at, bytes = fuzz_ring_size(s, &at);
    if (span->memory) return;
    if (FUZZ_TRY(gpupool_ring_acquire_span(fr.ring, bytes, s.b & 1 ? 1000 : 0, span),
                 1u << GPUPOOL_E_TIMEOUT | 1u << GPUPOOL_E_ARGUMENT))
        memset(span->memory, s.c, span->bytes);
    else span->memory = NULL;
}

static void fuzz_ring_return(fuzz_step s) {
    gpupool_span *span = &fr.span[s.a % FUZZ_SPANS];
    cudaStream_t stream;
    fuzz_lane *l;
    if (!span->memory) return;
    if (s.b & 1) {
        if (FUZZ_TRY(gpupool_ring_cancel_span(fr.ring, span), 0)) span->memory = NULL;
        return;
    }
    l = fuzz_ring_lane(s, &stream);
    if (s.b & 2) span->bytes = 1 + span->bytes / 2;
    fake_host_access(span->memory, span->bytes, 1, "filling a span");
    memset(span->memory, ++fr.seed & 255, span->bytes);
    size_t bytes = span->bytes;
    fuzz_ring_touches(l, bytes);
    if (!FUZZ_TRY(gpupool_ring_upload_span(fr.ring, span, l->device, stream), 0)) {
        fuzz_ring_let_go();
        fuzz_ring_mend(l, 0, 0, bytes);
        return;
    }
    memset(l->copy, fr.seed & 255, bytes);
    span->memory = NULL;
}

/* ---- the ring ---- */

static void fuzz_ring_agrees(void) {
    gpupool_ring_stats stats = kit_ring_stats(fr.ring);
    CHECK_RESULT(gpupool_ring_check(fr.ring), GPUPOOL_OK);
    CHECK(stats.used.now <= stats.pinned.now && stats.pinned.peak <= stats.limit_bytes);
}

static void fuzz_ring_ask(fuzz_step s) {
    fuzz_lane *l = &fr.lane[s.a % FUZZ_LANES];
    size_t released = 0;
    switch (s.b % 5) {
    case 0:
        if (l->ticket) FUZZ_TRY(gpupool_ring_wait(fr.ring, l->ticket, 0),
                                1u << GPUPOOL_E_TIMEOUT | FUZZ_RING_BROKEN);
        break;
    case 1:
        fuzz_ring_let_go();
        FUZZ_TRY(gpupool_ring_trim(fr.ring, fuzz_size(s.c, 0), &released), 0);
        break;
    case 2: fr.refuse = s.c & 1; break;
    case 3: fuzz_ring_let_go(); break;
    default: CHECK_RESULT(gpupool_ring_wait(fr.ring, 1u + UINT64_MAX / 2, 0),
                          GPUPOOL_E_ARGUMENT);
    }
    fuzz_ring_agrees();
}

/* A stream that captures is refused, and its capture goes on. */
static void fuzz_ring_capture(fuzz_step s) {
    cudaStream_t stream;
    fuzz_lane *l = fuzz_ring_lane(s, &stream);
    cudaGraph_t graph = NULL;
    gpupool_ticket ticket = 0;
    fuzz_ring_let_go();
    CHECK_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
    CHECK(gpupool_upload(fr.ring, l->device, l->host, 1 + s.c * 300u, stream) ==
          GPUPOOL_E_CAPTURING);
    CHECK(kit_download_async(fr.ring, l->host, l->device, 1 + s.c * 300u, stream, &ticket) ==
          GPUPOOL_E_CAPTURING);
    CHECK_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

/* ---- from first byte to last ---- */

static void fuzz_ring_step(fuzz_step s) {
    switch (s.verb % 16) {
    case 0: case 1: fuzz_ring_copy(s, 0); break;
    case 2: case 3: fuzz_ring_copy(s, 1); break;
    case 4: case 5: fuzz_ring_post(s, 0); break;
    case 6: case 7: fuzz_ring_post(s, 1); break;
    case 8: fuzz_ring_rows(s, 0); break;
    case 9: fuzz_ring_rows(s, 1); break;
    case 10: fuzz_ring_acquire(s); break;
    case 11: fuzz_ring_return(s); break;
    case 12: case 13: fuzz_fault.due = s; break;
    case 14: fuzz_ring_ask(s); break;
    default: fuzz_ring_capture(s);
    }
    CHECK_RESULT(gpupool_ring_check(fr.ring), GPUPOOL_OK);
}

static void fuzz_ring_open(fuzz_step s) {
    size_t bytes = ((size_t)16 + s.a) * 16 * KIB;
    memset(&fr, 0, sizeof fr);
    fr.ring = kit_ring(bytes, s.b & 1 ? 64 * KIB + (bytes / 4 - 64 * KIB) / 256 * s.b : 0, -1);
    for (int i = 0; i < FUZZ_LANES; i++) {
        fuzz_lane *l = &fr.lane[i];
        l->device = kit_device(FUZZ_LANE_BYTES);
        CHECK_EQ(cudaMemset(l->device, 0, FUZZ_LANE_BYTES), cudaSuccess);
        l->copy = (unsigned char *)calloc(1, FUZZ_LANE_BYTES);
        l->expected = (unsigned char *)calloc(1, FUZZ_LANE_BYTES);
        l->host = NULL; /* the last one is pinned, and goes without the ring */
        if (i < FUZZ_LANES - 1) l->host = kit_host(FUZZ_LANE_BYTES);
        else CHECK_EQ(cudaHostAlloc((void **)&l->host, FUZZ_LANE_BYTES, 0), cudaSuccess);
        memset(l->host, 0, FUZZ_LANE_BYTES);
    }
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

static void fuzz_ring_close(void) {
    fuzz_fault.due.verb = 0;
    for (int i = 0; i < FUZZ_SPANS; i++)
        if (fr.span[i].memory)
            CHECK_RESULT(gpupool_ring_cancel_span(fr.ring, &fr.span[i]), GPUPOOL_OK);
    for (int i = 0; i < FUZZ_LANES; i++) {
        fuzz_lane *l = &fr.lane[i];
        unsigned char *now;
        fuzz_ring_settle(l);
        fuzz_ring_let_go();
        now = kit_fetch(l->device, FUZZ_LANE_BYTES);
        CHECK(memcmp(now, l->copy, FUZZ_LANE_BYTES) == 0);
        free(now);
        free(l->copy);
        free(l->expected);
        kit_device_free(l->device, FUZZ_LANE_BYTES);
        if (i < FUZZ_LANES - 1) kit_host_free(l->host, FUZZ_LANE_BYTES);
        else CHECK_EQ(cudaFreeHost(l->host), cudaSuccess);
    }
    kit_ring_close(fr.ring);
}

static int fuzz_ring(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size};
    fuzz_step step = {0, 0, 0, 0};
    if (size < 8 || size > 512) return 1;
    fuzz_prepare();
    fuzz_next(&in, &step);
    fuzz_ring_open(step);
    while (fuzz_next(&in, &step)) fuzz_ring_step(step);
    if (!atomic_load(&check_bad)) fuzz_ring_close();
    return fuzz_settle();
}

#endif
