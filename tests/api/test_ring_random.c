// build: asan -fsanitize=address,undefined
// build: tsan -fsanitize=thread
/* Random transfers by four threads, each with a ring of its own, and then all with one ring; each
   byte is compared, under the race oracle, with the device's work in random order. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "gpupool.h"
#include "ring_kit.h"

enum { THREADS = 4, PARCELS = 4, ROUNDS = 2 };
#define ROOM (900 * KIB)

typedef struct parcel { /* bytes that are known on the host, on the device, or under way */
    unsigned char *host, *device;
    uint64_t seed;
    size_t bytes;
    int on_device, down, written; /* down, written: of the ticket */
    gpupool_ticket ticket;
} parcel;

typedef struct traveller {
    pthread_t thread;
    gpupool_ring *ring;
    uint64_t random;
    cudaStream_t streams[2];
    parcel parcels[PARCELS];
    int file, steps;
} traveller;

static int fill(void *to, size_t bytes, uint64_t offset, void *user) {
    kit_fill((unsigned char *)to, bytes, *(uint64_t *)user, offset);
    return 0;
}
static int compare(const void *from, size_t bytes, uint64_t offset, void *user) {
    return !kit_is((const unsigned char *)from, bytes, *(uint64_t *)user, offset);
}

/* Sizes around the limits where the ring's way changes. */
static size_t draw_bytes(traveller *t) {
    static const size_t most[] = {64, 5000, 70 * KIB, ROOM / 2};
    return 1 + check_below(&t->random, most[check_below(&t->random, 4)]);
}

static void settle(traveller *t, parcel *p) {
    gpupool_result result;
    if (!p->ticket) return;
    do
        result =
            gpupool_ring_wait(t->ring, p->ticket, check_below(&t->random, 2) ? -1 : 50000, NULL);
    while (result == GPUPOOL_E_TIMEOUT);
    OK(result);
    p->ticket = 0;
    if (p->down && !p->written) kit_is(p->host, p->bytes, p->seed, 0);
    p->on_device = 1;
}

static void give_ticket(traveller *t, parcel *p, gpupool_transfer *what) {
    if (check_below(&t->random, 2)) what->ticket = &p->ticket;
    p->down = what->direction == GPUPOOL_DOWN;
}

/* New bytes for a parcel, from memory, a function, or a file. */
static void send(traveller *t, parcel *p, cudaStream_t stream) {
    gpupool_transfer what;
    uint64_t offset = check_below(&t->random, 9000);
    p->seed = check_random(&t->random);
    p->bytes = draw_bytes(t);
    what = kit_up(p->device, p->host, p->bytes, stream);
    switch (check_below(&t->random, 4)) {
    case 0:
        what.read = fill;
        what.user = &p->seed;
        break;
    case 1:
        kit_fill(p->host, p->bytes, p->seed, 0);
        if (pwrite(t->file, p->host, p->bytes, (off_t)offset) != (ssize_t)p->bytes) exit(1);
        what.is_file = 1;
        what.file = t->file;
        what.offset = offset;
        break;
    default: kit_fill(p->host, p->bytes, p->seed, 0);
    }
    give_ticket(t, p, &what);
    OK(gpupool_ring_transfer(t->ring, &what));
    if (what.is_file) settle(t, p); /* the next one writes to the file */
    p->on_device = 1;
}

static void receive(traveller *t, parcel *p, cudaStream_t stream) {
    gpupool_transfer what = kit_down(p->host, p->device, p->bytes, stream);
    p->written = check_below(&t->random, 4) == 0;
    if (p->written) what.write = compare;
    what.user = &p->seed;
    memset(p->host, 0, p->bytes);
    give_ticket(t, p, &what);
    OK(gpupool_ring_transfer(t->ring, &what));
    if (!what.ticket && !p->written) kit_is(p->host, p->bytes, p->seed, 0);
}

static void *travel(void *user) {
    traveller *t = (traveller *)user;
    for (int step = 0; step < t->steps; step++) {
        parcel *p = &t->parcels[check_below(&t->random, PARCELS)];
        cudaStream_t stream = t->streams[check_below(&t->random, 2)];
        settle(t, p);
        /* What is small may still be under way on the other stream. */
        CUDA(cudaStreamSynchronize(t->streams[0]));
        CUDA(cudaStreamSynchronize(t->streams[1]));
        if (!p->on_device || check_below(&t->random, 2)) send(t, p, stream);
        else receive(t, p, stream);
    }
    for (int i = 0; i < PARCELS; i++) settle(t, &t->parcels[i]);
    return NULL;
}

static void open_traveller(traveller *t, gpupool_ring *ring, uint64_t seed, int steps) {
    memset(t, 0, sizeof *t);
    t->ring = ring;
    t->random = seed;
    t->steps = steps;
    t->file = memfd_create("traveller", 0);
    for (int i = 0; i < 2; i++) CUDA(cudaStreamCreateWithFlags(&t->streams[i], 0));
    for (int i = 0; i < PARCELS; i++) {
        t->parcels[i].host = kit_host(ROOM);
        t->parcels[i].device = kit_device(ROOM);
    }
}

static void close_traveller(traveller *t) {
    for (int i = 0; i < PARCELS; i++) {
        kit_host_free(t->parcels[i].host, ROOM);
        kit_device_free(t->parcels[i].device, ROOM);
    }
    for (int i = 0; i < 2; i++) CUDA(cudaStreamDestroy(t->streams[i]));
    close(t->file);
}

/* Now and then a stream stands still, or on a GPU is asked, until the weather changes. */
static atomic_int is_over;
static void *weather(void *user) {
    const traveller *t = (traveller *)user;
    uint64_t random = 1;
    while (!atomic_load(&is_over)) {
        cudaStream_t stream = t[check_below(&random, THREADS)].streams[random % 2];
#if CHECK_FAKE
        fake_hold(stream, FAKE_FIRM);
        usleep(300);
        fake_hold(stream, 0);
#else
        cudaStreamQuery(stream);
#endif
        usleep((useconds_t)check_below(&random, 1000));
    }
    return NULL;
}

/* rings: of how many the travellers have, in turn. */
static void round_of(int rings, uint64_t seed) {
    traveller travellers[THREADS];
    gpupool_ring *ring[THREADS];
    pthread_t clouds;
    atomic_store(&is_over, 0);
    check_case("%d rings, seed %llu", rings, (unsigned long long)seed);
#if CHECK_FAKE
    fake_mode(seed % 2 ? FAKE_THREADED : FAKE_EAGER);
#endif
    for (int i = 0; i < rings; i++)
        ring[i] =
            kit_ring((256 * KIB) << (seed + (uint64_t)i) % 3, 64 * KIB, (int)seed % 3 + i % 2);
    for (int i = 0; i < THREADS; i++)
        open_traveller(&travellers[i], ring[i % rings], seed * 100 + (uint64_t)i,
                       CHECK_FAKE ? 40 : 400);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&travellers[i].thread, NULL, travel, &travellers[i])) exit(1);
    if (pthread_create(&clouds, NULL, weather, travellers)) exit(1);
    for (int i = 0; i < THREADS; i++) pthread_join(travellers[i].thread, NULL);
    atomic_store(&is_over, 1);
    pthread_join(clouds, NULL);
    for (int i = 0; i < THREADS; i++) close_traveller(&travellers[i]);
    for (int i = 0; i < rings; i++) {
        CHECK_EQ(ring_stats(ring[i]).failures, 0);
        CHECK(ring_stats(ring[i]).pinned <= ring_stats(ring[i]).limit);
        OK(gpupool_ring_destroy(ring[i]));
    }
}

static void a_ring_each(void) {
    for (int i = 0; i < ROUNDS; i++) round_of(THREADS, (uint64_t)i + 1);
}
static void one_ring(void) {
    for (int i = 0; i < ROUNDS; i++) round_of(1, (uint64_t)i + 1);
}

int main(void) {
    KIT_TEST(a_ring_each);
    KIT_TEST(one_ring);
    return check_finish();
}
