/* world_clock FIRST LAST: one thread is stuck in a full launch queue, wherever gpupool first names
   that stream; meanwhile another allocates and frees. It would wait for ever if the stuck thread
   held the arena's lock. */
#include "world.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* The queue has room for all that the others launch, for their streams may wait for the full one.
 */
enum { HELD, OTHER, MINE, MINE_TOO, KEPT = 32, QUEUE = 5000 };
static gpupool_arena *arena;
static cudaStream_t streams[4];
static uint64_t seed;
static int is_held, is_over, scenes;
static long calls;
static char wrong[600];

static void expect(gpupool_result result, unsigned allowed, const char *call) {
    if (BIT(result) & (allowed | BIT(GPUPOOL_OK))) return;
    snprintf(wrong, sizeof wrong, "%s: %s", call, gpupool_last_error());
}

typedef struct hand {
    char *memory;
    size_t bytes;
    int home;
} hand;

static void give(hand *h) {
    fake_write(streams[h->home], "use", h->memory, h->bytes > 4096 ? 4096 : h->bytes, 7);
    expect(gpupool_free(arena, h->memory, streams[h->home]), 0, "free");
    h->memory = NULL;
}

/* Allocates into an empty hand, or frees. */
static void turn(hand *hands, const operation *op, int first, unsigned flags) {
    static const size_t most[] = {4096, 65536, 1 << 20, 12 << 20};
    hand *h = &hands[op->slot % KEPT];
    gpupool_request request = {0};
    if (h->memory) {
        give(h);
        return;
    }
    h->home = first + op->stream % 2;
    h->bytes = request.bytes = 1 + (op->number >> 2) % most[op->number & 3];
    request.stream = streams[h->home];
    request.flags = flags;
    h->memory = gpupool_alloc_request(arena, &request);
    if (!h->memory) expect(gpupool_last_result(), BIT(GPUPOOL_E_OUT_OF_MEMORY), "alloc");
}

static void empty(hand *hands) {
    int i;
    for (i = 0; i < KEPT; i++)
        if (hands[i].memory) give(&hands[i]);
}

/* Works on two streams; then one of them is full, and it goes on until a call is stuck. */
static void *get_stuck(void *user) {
    hand *hands = user;
    long i, full = 200 + (long)(seed * 37 % 300);
    for (i = 0; i < full + calls; i++) {
        operation op = world_operation_of(seed, i);
        if (i == full) {
            fake_hold(streams[HELD], FAKE_FIRM);
            __atomic_store_n(&is_held, 1, __ATOMIC_RELEASE);
            while (fake_pending(streams[HELD]) < QUEUE) fake_kernel(streams[HELD], "fill", NULL, 0);
        }
        /* a block of the full stream is not written to: gpupool's calls shall be the stuck ones */
        if (i > full && hands[op.slot % KEPT].memory && hands[op.slot % KEPT].home == HELD) {
            char *memory = hands[op.slot % KEPT].memory;
            hands[op.slot % KEPT].memory = NULL;
            expect(gpupool_free(arena, memory, streams[HELD]), 0, "free");
        } else turn(hands, &op, HELD, op.flags % 16 ? 0 : GPUPOOL_ZEROED);
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void go_on(hand *hands, long from, long count) {
    long i;
    for (i = from; i < from + count; i++) {
        operation op = world_operation_of(~seed, i);
        gpupool_stats stats;
        turn(hands, &op, MINE, GPUPOOL_NO_WAIT);
        if (op.flags % 16 == 0) expect(gpupool_get_stats(arena, &stats), 0, "get_stats");
    }
}

/* Returns whether a thread was stuck all the time, in the queue or in a wait for the device. */
static int scene(long operations) {
    static const uint64_t limits[] = {0, 96 << 20, 48 << 20};
    static hand stuck_hands[KEPT], hands[KEPT];
    gpupool_arena_config config = {0};
    pthread_t stuck;
    int i, was_stuck;
    is_held = is_over = 0;
    calls = operations;
    config.limit_bytes = limits[seed % 3];
    fake_mode(FAKE_THREADED);
    fake_queue(QUEUE);
    for (i = 0; i < 4; i++) cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking);
    expect(gpupool_arena_create(&arena, &config), 0, "create");
    go_on(hands, 0, calls); /* its streams have their events before others are stuck */
    pthread_create(&stuck, NULL, get_stuck, stuck_hands);
    while (!__atomic_load_n(&is_held, __ATOMIC_ACQUIRE)) usleep(200);
    for (i = 1; i < 100 && !__atomic_load_n(&is_over, __ATOMIC_ACQUIRE) && !fake_stuck(); i++) {
        go_on(hands, calls * i, 10);
        usleep(500);
    }
    go_on(hands, calls * i, calls);
    was_stuck = !__atomic_load_n(&is_over, __ATOMIC_ACQUIRE);
    fake_hold(streams[HELD], 0);
    pthread_join(stuck, NULL);
    empty(stuck_hands);
    empty(hands);
    expect(gpupool_check(arena), 0, "check");
    expect(gpupool_arena_destroy(arena), 0, "destroy");
    for (i = 0; i < 4; i++) cudaStreamDestroy(streams[i]);
    return was_stuck;
}

static const char *run(uint64_t number, long operations) {
    seed = number;
    wrong[0] = 0;
    alarm(30); /* who waits for ever is ended, and so the test fails */
    scenes += scene(operations);
    if (!wrong[0] && fake_failures()) snprintf(wrong, sizeof wrong, "%s", fake_failure_text());
    return wrong;
}

int main(int count, char **words) {
    static const driver clock = {"world_clock", 20, 600, run};
    int failed = world_drive(&clock, count, words);
    return failed || !scenes;
}
