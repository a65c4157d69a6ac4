/* Random transfers by several threads on several streams through two small rings: with and without
   tickets, by functions, by rows, out of spans. Bytes, results and counts are checked, while the
   simulated device runs them in random order under the race oracle. Streams stand still for a
   while; in a storm calls of CUDA fail, and the host has no memory.

   test_ring_random [ROUNDS [SEED]]

// build: plain
// build: check2 -O1 -DGPUPOOL_CHECK=2
// build: asan -fsanitize=address,undefined
// build: tsan -fsanitize=thread
// build: per_thread -DCUDA_API_PER_THREAD_DEFAULT_STREAM=1
*/
#define _DEFAULT_SOURCE
#include <stdatomic.h>
#include <stdlib.h>

#include "fail_malloc.h"
#include "gpupool.h"
#include "linked.h"
#include "ring_kit.h"

#include <pthread.h>
#include <unistd.h>

#define THREADS 3
#define STREAMS 3 /* and each thread's own */
#define RINGS 2
#define PARCELS 6
#define STEPS 40 /* of a round, all threads together */
#define ROOM ((size_t)900000)
#define MARGIN ((size_t)64)
#define TOO_LONG (30 * KIT_SECOND)

typedef enum place { ORDINARY, PINNED, HALF_PINNED, ON_DEVICE } place;

/* Bytes that travel between two places. One thread is at it. */
typedef struct parcel {
    pthread_mutex_t lock;
    place place;
    unsigned char *host, *device;
    cudaEvent_t event;     /* behind the work with it that is queued so far */
    size_t known_bytes;    /* how much the device holds of known_seed's pattern; 0: nobody knows */
    uint64_t known_seed;
    size_t bytes, skew;    /* of the transfer that is under way */
    uint64_t seed;
    int ring, down;        /* whose ticket or span it has */
    gpupool_ticket ticket; /* 0: none */
    gpupool_span span;     /* memory NULL: none */
    size_t span_bytes;
} parcel;

typedef struct traveller {
    uint64_t random;
    pthread_t thread;
    atomic_long steps; /* how many it has made; very many once it has made all */
} traveller;

static gpupool_ring *rings[RINGS];
static size_t ring_bytes[RINGS];
static int workers[RINGS];
static atomic_long arrived[RINGS][2]; /* transfers that ended well */
static parcel parcels[PARCELS];
static cudaStream_t streams[STREAMS];
static int storm;                     /* calls may fail */
static uint64_t seed;
static traveller travellers[THREADS];
static int threads;                   /* how many of them there are */
static uint64_t devices;
static atomic_int over;               /* 1: no weather any more */
static atomic_long begun, done;       /* steps; begun of this round */
static _Thread_local traveller *me;   /* NULL: a worker of a ring */

static uint64_t below(uint64_t bound) { return check_below(&me->random, bound); }

/* The test's own calls: a storm may strike them too, and then they are made again. */
static int failed(cudaError_t error, const char *call) {
    if (error == cudaSuccess) return 0;
    cudaGetLastError();
    if (storm) usleep(100);
    else check_fail(__FILE__, __LINE__, "%s: %s", call, cudaGetErrorName(error));
    return storm;
}
#define MUST(call) while (failed((call), #call)) continue

/* ---- what is in a parcel ---- */

static void touch(const void *at, size_t bytes, int write) {
#if CHECK_FAKE
    fake_host_access(at, bytes, write, "the test");
#endif
    (void)at, (void)bytes, (void)write;
}

/* The host's bytes are made, and seen, through a copy where only the device reaches them. */
static void copy(void *to, const void *from, size_t bytes, cudaStream_t stream) {
    MUST(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
    MUST(cudaStreamSynchronize(stream));
}

static void set_bytes(parcel *p, cudaStream_t stream) {
    unsigned char *at = p->place == ON_DEVICE ? kit_host(p->bytes) : p->host + p->skew;
    if (p->place != ON_DEVICE) touch(at, p->bytes, 1);
    kit_pattern(at, p->bytes, p->seed);
    if (p->place != ON_DEVICE) return;
    copy(p->host + p->skew, at, p->bytes, stream);
    kit_host_free(at, p->bytes);
}

static void check_bytes(parcel *p, cudaStream_t stream) {
    unsigned char *at = p->place == ON_DEVICE ? kit_host(p->bytes) : p->host + p->skew;
    if (p->place == ON_DEVICE) copy(at, p->host + p->skew, p->bytes, stream);
    else touch(p->host, p->skew + p->bytes + MARGIN, 0);
    kit_is_pattern(at, p->bytes, p->seed, 0);
    if (p->place == ON_DEVICE) kit_host_free(at, p->bytes);
    if (p->place == ON_DEVICE) return;
    kit_is_byte(p->host, p->skew, 0xee);
    kit_is_byte(at + p->bytes, MARGIN, 0xee);
}

/* The memory is the caller's again: nobody else reads or writes there. */
static void wipe(parcel *p) {
    if (p->place == ON_DEVICE) return;
    touch(p->host, p->skew + p->bytes + MARGIN, 1);
    memset(p->host, 0xee, p->skew + p->bytes + MARGIN);
}

/* ---- what became of a call ---- */

/* 1: it ended well. What a storm may do to it is no failed check. */
static int went_well(gpupool_result result) {
    int excused = storm && (result == GPUPOOL_E_CUDA || result == GPUPOOL_E_HOST_MEMORY ||
                            result == GPUPOOL_E_OUT_OF_MEMORY);
    return !excused && CHECK_RESULT(result, GPUPOOL_OK);
}

static void arrive(parcel *p, cudaStream_t stream) {
    atomic_fetch_add(&arrived[p->ring][p->down], 1);
    if (p->down) {
        check_bytes(p, stream);
    } else {
        wipe(p);
        p->known_bytes = p->bytes;
        p->known_seed = p->seed;
    }
}

/* Of a transfer on this stream. What one that failed has queued may still write to the device. */
static void end(parcel *p, gpupool_result result, cudaStream_t stream) {
    if (went_well(result)) {
        arrive(p, stream);
    } else {
        wipe(p);
        MUST(cudaStreamSynchronize(stream));
        if (!p->down) p->known_bytes = 0;
    }
}

static void settle(parcel *p, int64_t timeout) {
    gpupool_result result = gpupool_ring_wait(rings[p->ring], p->ticket, timeout);
    if (result == GPUPOOL_E_TIMEOUT && timeout >= 0) return;
    p->ticket = 0;
    end(p, result, cudaStreamPerThread);
}

/* ---- functions of the caller ---- */

/* One at a time takes its time, until every other thread has got on: that may not depend on it. */
static void be_long(const traveller *sender) {
    static atomic_int anyone;
    uint64_t start = linked_now_ns();
    long before[THREADS];
    if (atomic_exchange(&anyone, 1)) return;
    for (int i = 0; i < threads; i++) before[i] = atomic_load(&travellers[i].steps);
    for (int i = 0; i < threads; i++) {
        while (&travellers[i] != sender && atomic_load(&travellers[i].steps) == before[i] &&
               before[i] < STEPS) {
            usleep(50);
            if (linked_now_ns() - start < (uint64_t)TOO_LONG / 3) continue;
            check_fail(__FILE__, __LINE__, "a thread gets on only once a function is done");
            start += (uint64_t)TOO_LONG * 100;
        }
    }
    atomic_store(&anyone, 0);
}

typedef struct errand {
    const parcel *parcel;
    const traveller *sender;
    int is_long, fails;
} errand;

static int stand_at(const errand *e) {
    CHECK(me == e->sender || (!me && workers[e->parcel->ring] > 0));
    if (e->is_long) be_long(e->sender);
    return e->fails;
}

static int bring(void *to, size_t bytes, uint64_t offset, void *user) {
    const errand *e = (const errand *)user;
    (memcpy)(to, e->parcel->host + e->parcel->skew + offset, bytes);
    return stand_at(e);
}

static int take_away(const void *from, size_t bytes, uint64_t offset, void *user) {
    const errand *e = (const errand *)user;
    (memcpy)(e->parcel->host + e->parcel->skew + offset, from, bytes);
    return stand_at(e);
}

static void by_function(parcel *p, cudaStream_t stream) {
    gpupool_ring *ring = rings[p->ring];
    errand e = {p, me, !below(4), !below(8)};
    gpupool_result result;
    if (p->down) result = kit_download_to(ring, p->device, p->bytes, take_away, &e, stream);
    else result = kit_upload_from(ring, p->device, p->bytes, bring, &e, stream);
    if (e.fails && result == GPUPOOL_E_CALLBACK) {
        MUST(cudaStreamSynchronize(stream));
        if (!p->down) p->known_bytes = 0;
    } else {
        end(p, result, stream);
    }
}

/* ---- what a thread does next ---- */

static cudaStream_t any_stream(void) {
    uint64_t i = below(STREAMS + 1);
    return i == STREAMS ? cudaStreamPerThread : streams[i];
}

static size_t any_size(void) {
    size_t bytes = 1 + (size_t)below(below(4) ? (uint64_t)1 << (1 + below(20)) : ROOM);
    return bytes < ROOM - 2 * MARGIN ? bytes : ROOM - 2 * MARGIN;
}

static void by_ticket(parcel *p, cudaStream_t stream) {
    gpupool_result result;
    if (p->down)
        result = kit_download_async(rings[p->ring], p->host + p->skew, p->device, p->bytes,
                                        stream, &p->ticket);
    else
        result = kit_upload_async(rings[p->ring], p->device, p->host + p->skew, p->bytes,
                                      stream, &p->ticket);
    if (result == GPUPOOL_OK) return;
    p->ticket = 0;
    end(p, result, stream);
}

static void at_once(parcel *p, cudaStream_t stream) {
    gpupool_ring *ring = rings[p->ring];
    void *host = p->host + p->skew;
    end(p, p->down ? gpupool_download(ring, host, p->device, p->bytes, stream)
                   : gpupool_upload(ring, p->device, host, p->bytes, stream), stream);
}

static void transfer(parcel *p, cudaStream_t stream) {
    uint64_t way = below(4);
    p->down = p->known_bytes && below(2);
    p->skew = below(2) * below(MARGIN);
    p->bytes = p->down ? p->known_bytes : any_size();
    p->seed = p->down ? p->known_seed : check_random(&me->random);
    if (p->down) wipe(p);
    else set_bytes(p, stream);
    if (way == 0) by_ticket(p, stream);
    else if (way == 1 && p->place != ON_DEVICE) by_function(p, stream);
    else at_once(p, stream);
}

static void there_and_back_by_rows(parcel *p, cudaStream_t stream) {
    size_t width = 1 + (size_t)below(3000), height = 1 + (size_t)below(200);
    size_t pitch = width + (size_t)below(100), device_pitch = width + (size_t)below(100);
    gpupool_ring *ring = rings[p->ring];
    p->skew = 0;
    p->bytes = pitch * height;
    p->seed = check_random(&me->random);
    set_bytes(p, stream);
    p->known_bytes = 0;
    if (!went_well(kit_upload_2d(ring, p->device, device_pitch, p->host, pitch, width, height,
                                     stream))) return;
    atomic_fetch_add(&arrived[p->ring][GPUPOOL_UP], 1);
    wipe(p);
    if (!went_well(kit_download_2d(ring, p->host, pitch, p->device, device_pitch, width, height,
                                       stream))) return;
    atomic_fetch_add(&arrived[p->ring][GPUPOOL_DOWN], 1);
    touch(p->host, p->bytes, 0);
    for (size_t y = 0; y < height; y++) {
        kit_is_pattern(p->host + y * pitch, width, p->seed, y * pitch);
        kit_is_byte(p->host + y * pitch + width, pitch - width, 0xee);
    }
}

/* A span of another thread's may stay for as long as that thread waits for this one. */
static void acquire_span(parcel *p) {
    size_t most = ring_bytes[p->ring];
    size_t bytes = below(2) ? any_size() : below(2) ? most : 1 + (size_t)below(most);
    int64_t timeout = threads > 1 ? (int64_t)below(20) * KIT_SECOND / 1000 : -1;
    gpupool_result result;
    if (bytes > most) return;
    result = gpupool_ring_acquire_span(rings[p->ring], bytes, timeout, &p->span);
    if (result == GPUPOOL_E_TIMEOUT || !went_well(result)) p->span.memory = NULL;
    p->span_bytes = bytes;
}

static void cancel_span(parcel *p) {
    CHECK_RESULT(gpupool_ring_cancel_span(rings[p->ring], &p->span), GPUPOOL_OK);
    CHECK(!p->span.memory);
}

static void send_span(parcel *p, cudaStream_t stream) {
    p->down = 0;
    p->skew = 0;
    p->bytes = 1 + (size_t)below(p->span_bytes < ROOM / 2 ? p->span_bytes : ROOM / 2);
    p->seed = check_random(&me->random);
    p->span.bytes = p->bytes;
    touch(p->span.memory, p->bytes, 1);
    kit_pattern((unsigned char *)p->span.memory, p->bytes, p->seed);
    CHECK_RESULT(gpupool_ring_upload_span(rings[1 - p->ring], &p->span, p->device, stream),
                 GPUPOOL_E_ARGUMENT); /* it is not that ring's */
    gpupool_result result = gpupool_ring_upload_span(rings[p->ring], &p->span, p->device, stream);
    if (p->span.memory) touch(p->span.memory, p->bytes, 1);
    end(p, result, stream);
}

/* The calling thread's device is any, but for its own stream, which each device has one of. */
static void step(parcel *p) {
    cudaStream_t stream = any_stream();
    int device = stream == cudaStreamPerThread ? 0 : (int)below(devices), after = -1;
    MUST(cudaSetDevice(device));
    check_case("seed %llu, step %ld, place %d, %zu bytes", (unsigned long long)seed,
               (long)atomic_load(&done), (int)p->place, p->bytes);
    MUST(cudaStreamWaitEvent(stream, p->event, 0));
    if (p->ticket) {
        settle(p, below(3) ? (int64_t)below(1000000) : -1);
    } else if (p->span.memory) {
        if (below(4)) send_span(p, stream);
        else cancel_span(p);
    } else {
        uint64_t what = below(8);
        p->ring = (int)below(RINGS);
        if (what == 0 && p->place != ON_DEVICE) there_and_back_by_rows(p, stream);
        else if (what < 3) acquire_span(p);
        else transfer(p, stream);
    }
    MUST(cudaEventRecord(p->event, stream));
    MUST(cudaGetDevice(&after));
    CHECK_EQ(after, device);
    CHECK_RESULT(gpupool_ring_check(rings[p->ring]), GPUPOOL_OK);
    if (!below(16)) went_well(gpupool_ring_trim(rings[p->ring], (size_t)below(5 * MIB), NULL));
    atomic_fetch_add(&done, 1);
}

static void *travel(void *who) {
    me = (traveller *)who;
    while (atomic_fetch_add(&begun, 1) < STEPS) {
        parcel *p;
        do p = &parcels[below(PARCELS)];
        while (pthread_mutex_trylock(&p->lock));
        step(p);
        pthread_mutex_unlock(&p->lock);
        atomic_fetch_add(&me->steps, 1);
    }
    atomic_fetch_add(&me->steps, STEPS);
    return NULL;
}

/* ---- the weather ---- */

#if CHECK_FAKE
static void clear_up(void) {
    fake_fail_clear();
    fake_pinned_limit(0);
    fail_malloc_nth(0, 0);
}

/* No two in a row: what is to be done when waiting fails too is another matter. */
static void strike(void) {
    static const char *const calls[] = {
        "cuMemcpyAsync", "cuMemcpy2DAsync", "cuEventRecord", "cuEventQuery",
        "cuEventCreate", "cuMemHostRegister", "cuMemHostUnregister",
        "cuPointerGetAttributes"};
    clear_up();
    fake_fail_call(calls[below(KIT_COUNT(calls))], 1 + (long)below(3), 0,
                   below(2) ? cudaErrorInvalidValue : 0);
    if (below(4) == 0) fail_malloc_nth(1 + (long)below(4), 0);
    if (below(4) == 0) fake_pinned_limit(1 + (size_t)below(MIB));
}

/* Streams stand still, and go on; and somebody sees to it that all of it ends. */
static void *weather(void *who) {
    long last = -1;
    uint64_t since = 0;
    me = (traveller *)who;
    while (!atomic_load(&over)) {
        fake_hold(streams[below(STREAMS)], below(3) == 0);
        if (storm && below(2)) strike();
        usleep(50 + (unsigned)below(300));
        if (atomic_load(&done) != last) since = linked_now_ns();
        last = atomic_load(&done);
        if (linked_now_ns() - since < (uint64_t)TOO_LONG) continue;
        check_fail(__FILE__, __LINE__, "seed %llu: nobody gets on", (unsigned long long)seed);
        _Exit(EXIT_FAILURE);
    }
    clear_up();
    for (int i = 0; i < STREAMS; i++) fake_hold(streams[i], 0);
    return NULL;
}
#else
static void *weather(void *unused) { return unused; }
#endif

/* ---- a round ---- */

static void open_ring(int i) {
    static const size_t sizes[] = {256 * KIB, 512 * KIB, 5 * MIB};
    static const int numbers[] = {-1, -1, 1, 3};
    ring_bytes[i] = sizes[below(KIT_COUNT(sizes))];
    workers[i] = numbers[below(KIT_COUNT(numbers))];
    rings[i] = kit_ring(ring_bytes[i], below(2) ? 64 * KIB : 0, workers[i]);
    for (int way = 0; way < 2; way++) atomic_store(&arrived[i][way], 0);
}

/* All is done, and the ring holds nothing and has forgotten nothing. */
static void check_ring(int i) {
    gpupool_ring_stats stats;
    CHECK_RESULT(gpupool_ring_trim(rings[i], 0, NULL), GPUPOOL_OK);
    stats = kit_ring_stats(rings[i]);
    CHECK_EQ(stats.used.now, 0);
    CHECK_EQ(stats.pinned.now, 0);
    CHECK(stats.pinned.peak <= ring_bytes[i]);
    for (int way = 0; way < 2; way++) CHECK_EQ(stats.transfers[way], atomic_load(&arrived[i][way]));
}

/* It waits for what has a ticket, whatever the weather. */
static void close_ring(int i) {
    gpupool_result result;
    do result = gpupool_ring_destroy(rings[i]);
    while (storm && result == GPUPOOL_E_CUDA);
    CHECK_RESULT(result, GPUPOOL_OK);
    atomic_fetch_add(&done, 1);
}

static void finish(int settled) {
    for (int i = 0; i < PARCELS; i++) {
        parcel *p = &parcels[i];
        if (p->span.memory) cancel_span(p);
        if (p->ticket && settled) settle(p, -1);
        atomic_fetch_add(&done, 1);
    }
    for (int i = 0; i < RINGS && !settled; i++) close_ring(i);
}

static void unpack(parcel *p) {
    if (p->ticket && !storm) arrive(p, cudaStreamPerThread);
    else if (p->ticket && !p->down) p->known_bytes = 0;
    p->ticket = 0;
}

static void round_of(void) {
    traveller other = {.random = seed * 100 + 98}, sky = {.random = seed * 100 + 99};
    int settled = (int)(seed % 2);
    me = &other;
    for (int i = 0; i < RINGS; i++) open_ring(i);
    storm = CHECK_FAKE && below(2);
    atomic_store(&over, 0);
    atomic_store(&begun, 0);
    for (int i = 0; i < threads; i++) {
        atomic_store(&travellers[i].steps, 0);
        travellers[i].random = seed * 100 + (uint64_t)i;
    }
    CHECK_EQ(pthread_create(&sky.thread, NULL, weather, &sky), 0);
    for (int i = 0; i < threads; i++)
        CHECK_EQ(pthread_create(&travellers[i].thread, NULL, travel, &travellers[i]), 0);
    for (int i = 0; i < threads; i++) pthread_join(travellers[i].thread, NULL);
    finish(settled);
    atomic_store(&over, 1);
    pthread_join(sky.thread, NULL);
    for (int i = 0; i < PARCELS; i++) unpack(&parcels[i]);
    storm = 0;
    MUST(cudaDeviceSynchronize());
    for (int i = 0; i < RINGS && settled; i++) {
        check_ring(i);
        kit_ring_close(rings[i]);
    }
}

/* ---- all of it ---- */

static void pack(parcel *p, place where) {
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->place = where;
    p->device = kit_device(ROOM);
    MUST(cudaEventCreateWithFlags(&p->event, cudaEventDisableTiming));
    if (where == PINNED) MUST(cudaHostAlloc((void **)&p->host, ROOM, cudaHostAllocDefault));
    else if (where == ON_DEVICE) MUST(cudaMalloc((void **)&p->host, ROOM));
    else p->host = (unsigned char *)aligned_alloc(4096, (ROOM + 4095) / 4096 * 4096);
    if (where == HALF_PINNED) MUST(cudaHostRegister(p->host, 4096 * 100, cudaHostRegisterDefault));
    if (where != ON_DEVICE) memset(p->host, 0xee, ROOM);
}

static void drop(parcel *p) {
    kit_device_free(p->device, ROOM);
    MUST(cudaEventDestroy(p->event));
    if (p->place == HALF_PINNED) MUST(cudaHostUnregister(p->host));
    if (p->place == PINNED) MUST(cudaFreeHost(p->host));
    else if (p->place == ON_DEVICE) MUST(cudaFree(p->host));
    else free(p->host);
    pthread_mutex_destroy(&p->lock);
}

static int rounds = 30;
static uint64_t first_seed = 1;

static void rounds_of(int number) {
    static const place places[PARCELS] = {ORDINARY, ORDINARY, ORDINARY, PINNED, HALF_PINNED,
                                          ON_DEVICE};
    threads = number;
    devices = (uint64_t)kit_devices();
    for (int i = 0; i < PARCELS; i++) pack(&parcels[i], places[i]);
    for (int i = 0; i < STREAMS; i++)
        MUST(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
#if CHECK_FAKE
    fake_mode(FAKE_THREADED);
#endif
    for (seed = first_seed; seed < first_seed + (uint64_t)rounds; seed++) round_of();
#if CHECK_FAKE
    fake_mode(FAKE_EAGER);
#endif
    for (int i = 0; i < PARCELS; i++) drop(&parcels[i]);
    for (int i = 0; i < STREAMS; i++) MUST(cudaStreamDestroy(streams[i]));
}

static void alone(void) { rounds_of(1); }
static void beside_others(void) { rounds_of(THREADS); }

int main(int count, char **arguments) {
    if (count > 1) rounds = atoi(arguments[1]);
    if (count > 2) first_seed = strtoull(arguments[2], NULL, 10);
    ARENA_TEST(alone);
    ARENA_TEST(beside_others);
    return check_finish();
}
