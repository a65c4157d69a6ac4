/* What sleep and waking cost, against the driver's own calls, the staging ring and the host in the
   same run, and the bars they are held to: make bench-sleep. Each figure is the median of 3 rounds,
   with the least and the most. What it is compared with is measured in the same rounds, while the
   arena sleeps.
   Usage: sleep [GIB [KEEP_GIB]], 0 for the default: of device memory in blocks that sleep, and of
   what is kept in host memory. Both are cut down to what is there. */
#define _GNU_SOURCE
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <sched.h>
#include <unistd.h>

#define BENCH_NAME "sleep"
#include "must.h"

#define GIB ((size_t)1 << 30)
#define MIB ((size_t)1 << 20)
#define ROUNDS 3
#define BLOCKS 1000
#define CHUNK (32 * MIB) /* of the driver alone */
#define SAMPLE 4096

#if defined(GPUPOOL_TEST_GPU)
#define DEFAULT_BYTES (60 * GIB)
#define PLAIN_BYTES (4 * GIB) /* ordinary memory, to compare with */
#define SPARE (2 * GIB)       /* of the device's memory */
#else /* simulated: shows that the program works, no figure means anything */
#define DEFAULT_BYTES (96 * MIB)
#define PLAIN_BYTES (32 * MIB)
#define SPARE (2 * GIB)
#endif

typedef struct series {
    double of[ROUNDS];
} series;

static gpupool_arena *arena;
static gpupool_ring *ring;
static cudaStream_t stream;
static unsigned char *block[BLOCKS], *ordinary;
static size_t bytes[BLOCKS];
static size_t used_before; /* of the device's memory, before there was an arena */
static int missed;

static size_t least(size_t a, size_t b) { return a < b ? a : b; }
static size_t less(size_t a, size_t b) { return a > b ? a - b : 0; }

/* ---- the machine ---- */

static size_t device_bytes(int used) { /* in use, or free */
    size_t free_bytes = 0, total = 0;
    cuda("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total));
    return used ? total - free_bytes : free_bytes;
}

/* The number behind a word in a file, or the first one if the word is NULL. SIZE_MAX: none. */
static size_t number_in(const char *name, const char *word) {
    char line[256];
    size_t number = SIZE_MAX;
    FILE *file = fopen(name, "r");
    if (!file) return number;
    while (number == SIZE_MAX && fgets(line, sizeof line, file)) {
        const char *at = word ? strstr(line, word) : line;
        char *end;
        if (!at) continue;
        if (word) at += strlen(word);
        number = (size_t)strtoull(at, &end, 10);
        if (end == at) number = SIZE_MAX; /* "max" */
    }
    fclose(file);
    return number;
}

/* Less what the system does not have, or the control group does not let us have. */
static size_t host_available(void) {
    static const char *const group[2][2] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
    size_t available = number_in("/proc/meminfo", "MemAvailable:");
    available = available == SIZE_MAX ? 8 * GIB : available * 1024;
    for (int i = 0; i < 2; i++) {
        size_t most = number_in(group[i][0], NULL), used = number_in(group[i][1], NULL);
        if (most != SIZE_MAX && used != SIZE_MAX) available = least(available, less(most, used));
    }
    return available;
}

static void print_machine(void) {
    cpu_set_t cores;
    int count = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
#if defined(GPUPOOL_TEST_GPU)
    struct cudaDeviceProp gpu;
    cuda("cudaGetDeviceProperties", cudaGetDeviceProperties(&gpu, 0));
    printf("%s", gpu.name);
#else
    printf("simulated GPU, no figure means anything");
#endif
    printf("; %d cores; free: %.1f GiB of device memory, %.1f GiB of host memory\n", count,
           (double)device_bytes(0) / (double)GIB, (double)host_available() / (double)GIB);
}

/* ---- the table ---- */

static series sorted(series all) {
    qsort(all.of, ROUNDS, sizeof *all.of, by_value);
    return all;
}

static void row(const char *what, series all, const char *unit, const char *judged) {
    all = sorted(all);
    printf("  %-54s %9.4f  (%.4f to %.4f) %-5s %s\n", what, all.of[ROUNDS / 2], all.of[0],
           all.of[ROUNDS - 1], unit, judged);
}

static void figure(const char *what, series all, const char *unit) { row(what, all, unit, ""); }

static void judge(const char *what, series all, const char *unit, const char *words, double bar,
                  int is_met) {
    char judged[80];
    snprintf(judged, sizeof judged, "bar %s %.2f  %s", words, bar, is_met ? "met" : "MISSED");
    row(what, all, unit, judged);
    missed += !is_met;
}

static void at_least(const char *what, series all, const char *unit, double bar) {
    judge(what, all, unit, "at least", bar, sorted(all).of[ROUNDS / 2] >= bar);
}

static void at_most(const char *what, series all, const char *unit, double bar) {
    judge(what, all, unit, "at most", bar, sorted(all).of[ROUNDS - 1] <= bar); /* the worst */
}

static series ratio(series a, series b) {
    for (int i = 0; i < ROUNDS; i++) a.of[i] /= b.of[i];
    return a;
}

static series sum(series a, series b) {
    for (int i = 0; i < ROUNDS; i++) a.of[i] += b.of[i];
    return a;
}

static series rate(size_t of_bytes, series seconds) { /* GB/s */
    for (int i = 0; i < ROUNDS; i++) seconds.of[i] = (double)of_bytes * 1e-9 / seconds.of[i];
    return seconds;
}

/* ---- the driver alone ---- */

static struct {
    CUdeviceptr at;
    size_t count;
    CUmemGenericAllocationHandle *chunk;
} own;

/* The header's own table of calls, which any arena's is like. */
#define own_driver (&arena->driver)

static void driver(const char *what, CUresult result) {
    char why[32];
    snprintf(why, sizeof why, "CUresult %d", (int)result);
    if (result != CUDA_SUCCESS) stop(what, why);
}

static void driver_reserve(size_t of_bytes) {
    own.count = (of_bytes + CHUNK - 1) / CHUNK;
    own.chunk = (CUmemGenericAllocationHandle *)calloc(own.count, sizeof *own.chunk);
    if (!own.chunk) stop("calloc", "no memory");
    driver("cuMemAddressReserve", own_driver->reserve(&own.at, own.count * CHUNK, 0, 0, 0));
}

static void driver_end(void) {
    driver("cuMemAddressFree", own_driver->unreserve(own.at, own.count * CHUNK));
    free(own.chunk);
}

static double driver_gives(void) {
    CUmemAllocationProp kind;
    CUmemAccessDesc access;
    double start = now();
    memset(&kind, 0, sizeof kind);
    memset(&access, 0, sizeof access);
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location = kind.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    for (size_t i = 0; i < own.count; i++)
        driver("cuMemCreate", own_driver->create(&own.chunk[i], CHUNK, &kind, 0));
    for (size_t i = 0; i < own.count; i++) {
        driver("cuMemMap", own_driver->map(own.at + i * CHUNK, CHUNK, 0, own.chunk[i], 0));
        driver("cuMemSetAccess", own_driver->access(own.at + i * CHUNK, CHUNK, &access, 1));
    }
    return now() - start;
}

static double driver_takes(void) {
    double start = now();
    for (size_t i = 0; i < own.count; i++)
        driver("cuMemUnmap", own_driver->unmap(own.at + i * CHUNK, CHUNK));
    for (size_t i = 0; i < own.count; i++)
        driver("cuMemRelease", own_driver->release(own.chunk[i]));
    return now() - start;
}

/* ---- ordinary memory, by a ring ---- */

static double plain(unsigned char *host, unsigned char *device, int down) {
    double start = now();
    if (down) ours("download", gpupool_download(ring, host, device, PLAIN_BYTES, stream));
    else ours("upload", gpupool_upload(ring, device, host, PLAIN_BYTES, stream));
    return now() - start;
}

static void plain_round(double *up, double *down) {
    unsigned char *device = NULL;
    cuda("cudaMalloc", cudaMalloc((void **)&device, PLAIN_BYTES));
    *up = plain(ordinary, device, 0);
    *down = plain(ordinary, device, 1);
    cuda("cudaFree", cudaFree(device));
}

/* ---- the arena and its blocks ---- */

static gpupool_stats stats(void) {
    gpupool_stats found;
    ours("stats", gpupool_get_stats(arena, &found));
    return found;
}

static size_t live_bytes(void) { return stats().allocated.now; }

static double fall_asleep(gpupool_content content) {
    double start = now();
    ours("sleep", gpupool_sleep(arena, content));
    return now() - start;
}

static double wake(void) {
    double start = now();
    ours("wake", gpupool_wake(arena));
    return now() - start;
}

static int value(int i, int round) { return (i * 37 + round * 101) % 251 + 1; }

static void fill(int round) {
    for (int i = 0; i < BLOCKS; i++)
        cuda("memset", cudaMemsetAsync(block[i], value(i, round), bytes[i], stream));
    cuda("sync", cudaStreamSynchronize(stream));
}

static void expect(int i, size_t at, int round) {
    unsigned char sample[SAMPLE];
    size_t n = least(SAMPLE, bytes[i] - at);
    cuda("copy", cudaMemcpyAsync(sample, block[i] + at, n, cudaMemcpyDeviceToHost, stream));
    cuda("sync", cudaStreamSynchronize(stream));
    for (size_t k = 0; k < n; k++)
        if (sample[k] != value(i, round)) stop("a block", "it does not hold what it held");
}

/* The beginning, the middle and the end of each block. */
static void expect_all(int round) {
    for (int i = 0; i < BLOCKS; i++) {
        expect(i, 0, round);
        expect(i, bytes[i] / 2, round);
        expect(i, less(bytes[i], SAMPLE), round);
    }
}

/* Sizes over 12 powers of two, so many bytes in all. */
static void open_arena(size_t all) {
    gpupool_arena_config config;
    uint64_t random = 1, weights = 0;
    size_t smallest = SIZE_MAX, largest = 0;
    memset(&config, 0, sizeof config);
    config.source = GPUPOOL_SOURCE_MAPPED;
    config.name = "sleep";
    ours("arena", gpupool_arena_create(&arena, &config));
    for (int i = 0; i < BLOCKS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (size_t)16 << (random >> 33) % 12;
        bytes[i] += (size_t)(random >> 40) % bytes[i];
        weights += bytes[i];
    }
    for (int i = 0; i < BLOCKS; i++) {
        gpupool_request request;
        memset(&request, 0, sizeof request);
        bytes[i] = (size_t)((double)all * (double)bytes[i] / (double)weights) / 512 * 512;
        if (bytes[i] < 512) bytes[i] = 512;
        request.bytes = bytes[i];
        request.stream = stream;
        block[i] = (unsigned char *)gpupool_alloc_request(arena, &request);
        if (!block[i]) stop("a block", gpupool_last_error());
        smallest = least(smallest, bytes[i]);
        largest = less(largest, bytes[i]) + bytes[i];
    }
    printf("%d blocks of %.2f to %.2f MiB, %.2f GiB; reserved %.2f GiB in %d chunks\n", BLOCKS,
           (double)smallest / (double)MIB, (double)largest / (double)MIB,
           (double)live_bytes() / (double)GIB, (double)stats().reserved.now / (double)GIB,
           (int)stats().chunks);
}

static void close_arena(void) {
    for (int i = 0; i < BLOCKS; i++) ours("free", gpupool_free(arena, block[i], stream));
    ours("destroy", gpupool_arena_destroy(arena));
}

/* More of the device's memory in use than before the arena was made, in MiB. */
static double left_mib(void) {
    return ((double)device_bytes(1) - (double)used_before) / (double)MIB;
}

/* ---- the measurements ---- */

static void discarded(size_t all) {
    series asleep, awake, takes, gives, left;
    size_t reserved;
    printf("\nDISCARD: ");
    open_arena(all);
    reserved = stats().reserved.now;
    driver_reserve(reserved);
    for (int i = 0; i < ROUNDS; i++) {
        fill(i);
        asleep.of[i] = fall_asleep(GPUPOOL_DISCARD);
        left.of[i] = left_mib();
        gives.of[i] = driver_gives();
        takes.of[i] = driver_takes();
        awake.of[i] = wake();
        if (stats().reserved.now < live_bytes()) stop("waking", "not all memory is there");
    }
    fill(ROUNDS);
    expect_all(ROUNDS);
    driver_end();
    figure("sleep", asleep, "s");
    figure("wake", awake, "s");
    if (all == 60 * GIB) at_most("both", sum(asleep, awake), "s", 0.30);
    else figure("both", sum(asleep, awake), "s");
    printf("  the driver alone, %d chunks of 32 MiB:\n", (int)own.count);
    figure("  cuMemUnmap, cuMemRelease", takes, "s");
    figure("  cuMemCreate, cuMemMap, cuMemSetAccess", gives, "s");
    figure("sleep / the driver alone", ratio(asleep, takes), "");
    figure("wake / the driver alone", ratio(awake, gives), "");
    figure("both / the driver alone", ratio(sum(asleep, awake), sum(takes, gives)), "");
    at_most("device memory in use while asleep, less the context's", left, "MiB", 0);
    close_arena();
}

static void kept(size_t all) {
    series asleep, awake, left, up, down;
    size_t live;
    printf("\nKEEP: ");
    open_arena(all);
    live = live_bytes();
    for (int i = 0; i < ROUNDS; i++) {
        fill(i);
        asleep.of[i] = fall_asleep(GPUPOOL_KEEP);
        left.of[i] = left_mib();
        plain_round(&up.of[i], &down.of[i]);
        awake.of[i] = wake();
        expect_all(i);
    }
    figure("sleep", asleep, "s");
    figure("wake", awake, "s");
    figure("sleep, down", rate(live, asleep), "GB/s");
    printf("  %-56s %8.4f GB/s\n", "the first of them, into fresh memory of the host",
           rate(live, asleep).of[0]);
    figure("wake, up", rate(live, awake), "GB/s");
    printf("  the ring's own, %.2f GiB of ordinary memory:\n", (double)PLAIN_BYTES / (double)GIB);
    figure("  down", rate(PLAIN_BYTES, down), "GB/s");
    figure("  up", rate(PLAIN_BYTES, up), "GB/s");
    at_least("down / the ring's own", ratio(rate(live, asleep), rate(PLAIN_BYTES, down)), "", 0.80);
    at_least("up / the ring's own", ratio(rate(live, awake), rate(PLAIN_BYTES, up)), "", 0.90);
    at_most("device memory in use while asleep, less the context's", left, "MiB", 0);
    close_arena();
}

/* Kernels, the ring and the driver's calls have run once before memory is looked at. */
static void warm_up(void) {
    unsigned char *device;
    cuda("stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ours("ring", gpupool_ring_create(&ring, NULL));
    ordinary = (unsigned char *)malloc(PLAIN_BYTES);
    if (!ordinary) stop("malloc", "no memory");
    memset(ordinary, 1, PLAIN_BYTES);
    cuda("cudaMalloc", cudaMalloc((void **)&device, PLAIN_BYTES));
    cuda("memset", cudaMemsetAsync(device, 2, PLAIN_BYTES, stream));
    for (int down = 0; down < 2; down++) plain(ordinary, device, down);
    cuda("cudaFree", cudaFree(device));
    ours("arena", gpupool_arena_create(&arena, NULL));
    driver_reserve(CHUNK);
    driver_gives();
    driver_takes();
    driver_end();
    ours("destroy", gpupool_arena_destroy(arena));
}

static size_t chosen(int argc, char **argv, int i) {
    double gib = argc > i ? strtod(argv[i], NULL) : 0;
    return gib > 0 ? (size_t)(gib * (double)GIB) : DEFAULT_BYTES;
}

int main(int argc, char **argv) {
    size_t all = chosen(argc, argv, 1), keep = chosen(argc, argv, 2), room, host;
    warm_up();
    print_machine();
    used_before = device_bytes(1);
    room = less(device_bytes(0), SPARE);
    host = less(host_available(), 4 * GIB);
    all = least(all, room);
    keep = least(keep, least(room, host));
    if (all < BLOCKS * 512 || keep < BLOCKS * 512) stop("memory", "too little is free");
    discarded(all);
    kept(keep);
    ours("destroy", gpupool_ring_destroy(ring));
    printf("\n%d bars missed\n", missed);
    return 0;
}
