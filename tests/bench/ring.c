/* What the staging ring reaches, against CUDA's own copies, the host's and the disk's in the same
   run, and the bars it is held to: make bench-ring. A second table has the rates for other chunks
   and numbers of workers than the ring chooses by itself.
   Usage: ring [RING_MIB [CHUNK_KIB [WORKERS [FOLDER]]]], 0 for the default; the file is made in the
   folder, which should not lie in memory. */
#define _GNU_SOURCE
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define BENCH_NAME "ring"
#include "must.h"

#if defined(GPUPOOL_TEST_GPU)
#define SIZE ((size_t)1 << 30)
#define FILE_SIZE ((size_t)4 << 30)
#else /* simulated: shows that the program works, no figure means anything */
#define SIZE ((size_t)8 << 20)
#define FILE_SIZE ((size_t)16 << 20)
#endif
#define RUNS 9

static gpupool_ring_config config;
static cudaStream_t streams[2];
static unsigned char *device[2], *ordinary[2], *pinned;
static const char *folder = "/var/tmp";
static int missed, runs = RUNS;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of a transfer in seconds. */
static double timed(double (*transfer)(gpupool_ring *), gpupool_ring *ring) {
    double times[RUNS];
    transfer(ring);
    for (int i = 0; i < runs; i++) times[i] = transfer(ring);
    qsort(times, (size_t)runs, sizeof *times, by_value);
    return times[runs / 2];
}

static double rate(double (*transfer)(gpupool_ring *), gpupool_ring *ring) {
    return (double)SIZE * 1e-9 / timed(transfer, ring);
}

/* ---- the transfers: until the data has arrived ---- */

static double copy(void *to, const void *from) {
    double start = now();
    cuda("copy", cudaMemcpyAsync(to, from, SIZE, cudaMemcpyDefault, streams[0]));
    cuda("sync", cudaStreamSynchronize(streams[0]));
    return now() - start;
}

static double pinned_up(gpupool_ring *ring) { return (void)ring, copy(device[0], pinned); }
static double pinned_down(gpupool_ring *ring) { return (void)ring, copy(pinned, device[0]); }
static double plain_up(gpupool_ring *ring) { return (void)ring, copy(device[0], ordinary[0]); }
static double plain_down(gpupool_ring *ring) { return (void)ring, copy(ordinary[0], device[0]); }

static double ring_up(gpupool_ring *ring) {
    double start = now();
    ours("upload", gpupool_upload(ring, device[0], ordinary[0], SIZE, streams[0]));
    cuda("sync", cudaStreamSynchronize(streams[0]));
    return now() - start;
}

static double ring_down(gpupool_ring *ring) {
    double start = now();
    ours("download", gpupool_download(ring, ordinary[0], device[0], SIZE, streams[0]));
    return now() - start;
}

static void *other_way(void *ring) {
    ours("download", gpupool_download((gpupool_ring *)ring, ordinary[1], device[1], SIZE,
                                      streams[1]));
    return NULL;
}

static double both_ways(gpupool_ring *ring) {
    double start = now();
    pthread_t other;
    if (pthread_create(&other, NULL, other_way, ring)) stop("thread", "none to be had");
    ring_up(ring);
    pthread_join(other, NULL);
    return now() - start;
}

/* ---- the host alone: each thread copies its own part, from one end to the other ---- */

#define THREADS_MOST 64

static int threads;       /* that a transfer has: the caller and its workers */
static int past_caches;
static size_t block;      /* copied to one place, as a slot is; 0: each byte to its own */

static void *copy_part(void *number) {
    size_t part = SIZE / (size_t)threads / 64 * 64, at = (size_t)(uintptr_t)number * part;
    size_t step = block ? block : part;
    for (size_t done = 0; done < part; done += step) {
        size_t n = part - done < step ? part - done : step;
        unsigned char *to = ordinary[1] + at + (block ? 0 : done);
        if (past_caches) gpi_host_copy_away(to, ordinary[0] + at + done, n);
        else memcpy(to, ordinary[0] + at + done, n);
    }
    return NULL;
}

static double on_threads(int count, void *(*run)(void *)) {
    pthread_t others[THREADS_MOST];
    double start = now();
    for (int i = 1; i < count; i++)
        if (pthread_create(&others[i], NULL, run, (void *)(uintptr_t)i))
            stop("thread", "none to be had");
    run(NULL);
    for (int i = 1; i < count; i++) pthread_join(others[i], NULL);
    return now() - start;
}

static double host_copy(gpupool_ring *ring) { return (void)ring, on_threads(threads, copy_part); }

static double host_rate(int past, size_t size) {
    past_caches = past;
    block = size;
    return rate(host_copy, NULL);
}

/* ---- a file ---- */

#define READERS 8
#define READ_BYTES ((size_t)2 << 20)

static int file, direct;       /* direct: past the page cache; -1: not to be had here */
static int reads_from;         /* one of them */
static atomic_size_t next_read;

static void uncache(void) {
    if (posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)) stop("posix_fadvise", "refused");
}

static void write_file(void) {
    char name[4096];
    snprintf(name, sizeof name, "%s/gpupool-bench-XXXXXX", folder);
    file = mkstemp(name);
    if (file < 0) stop(name, strerror(errno));
    direct = open(name, O_RDONLY | O_DIRECT);
    unlink(name);
    for (size_t at = 0; at < FILE_SIZE; at += SIZE)
        for (size_t done = 0; done < SIZE;) {
            ssize_t put = write(file, ordinary[0] + done, SIZE - done);
            if (put <= 0) stop("writing the file", strerror(errno));
            done += (size_t)put;
        }
    if (fsync(file)) stop("fsync", strerror(errno));
}

static double file_up(gpupool_ring *ring) {
    double start = now();
    ours("upload_file", gpupool_upload_file(ring, device[1], file, 0, FILE_SIZE, streams[0]));
    cuda("sync", cudaStreamSynchronize(streams[0]));
    return now() - start;
}

static double file_up_uncached(gpupool_ring *ring) {
    uncache();
    return file_up(ring);
}

static void *read_blocks(void *unused) {
    void *memory = aligned_alloc(4096, READ_BYTES);
    size_t at;
    if (!memory) stop("aligned_alloc", "no memory");
    while ((at = atomic_fetch_add(&next_read, READ_BYTES)) < FILE_SIZE)
        if (pread(reads_from, memory, READ_BYTES, (off_t)at) <= 0)
            stop("pread", strerror(errno));
    free(memory);
    return unused;
}

static double disk_alone(gpupool_ring *ring) {
    (void)ring;
    uncache();
    reads_from = direct;
    atomic_store(&next_read, 0);
    return on_threads(READERS, read_blocks);
}

/* As many threads as the ring has read what is in the page cache, each to one place. */
static double cache_alone(gpupool_ring *ring) {
    (void)ring;
    reads_from = file;
    atomic_store(&next_read, 0);
    return on_threads(threads, read_blocks);
}

static double file_rate(double (*way)(gpupool_ring *), gpupool_ring *ring) {
    return (double)FILE_SIZE * 1e-9 / timed(way, ring);
}

/* ---- small ones: from the call to its return ---- */

#define SMALL_RUNS 4001

/* Both in turn, so that neither has the better moment; each takes other bytes than the last. */
static void small(gpupool_ring *ring, size_t bytes, double *own, double *theirs) {
    static double times[2][SMALL_RUNS];
    for (int i = 0; i < 2 * SMALL_RUNS; i++) {
        const unsigned char *from = ordinary[0] + (size_t)(i % 64) * 65536;
        double start = now();
        if (i % 2)
            cuda("copy", cudaMemcpyAsync(device[0], from, bytes, cudaMemcpyHostToDevice,
                                         streams[0]));
        else ours("upload", gpupool_upload(ring, device[0], from, bytes, streams[0]));
        times[i % 2][i / 2] = now() - start;
        cuda("sync", cudaStreamSynchronize(streams[0]));
    }
    for (int i = 0; i < 2; i++) qsort(times[i], SMALL_RUNS, sizeof(double), by_value);
    *own = times[0][SMALL_RUNS / 2] * 1e6;
    *theirs = times[1][SMALL_RUNS / 2] * 1e6;
}

/* ---- the table ---- */

static void bar(const char *what, double got, double wanted, const char *unit) {
    printf("  %-44s %6.2f %-20s bar %5.2f  %s\n", what, got, unit, wanted,
           got >= wanted ? "met" : "MISSED");
    missed += got < wanted;
}

static gpupool_ring *ring_of(gpupool_ring_config with) {
    gpupool_ring *ring;
    ours("ring", gpupool_ring_create(&ring, &with));
    return ring;
}

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b) { return a < b ? b : a; }

static void files(gpupool_ring *ring, double line) {
    double cached, uncached, disk;
    runs = 3;
    write_file();
    cached = file_rate(file_up, ring);
    printf("  file in the page cache: %.1f GB/s; %d threads that only read it: %.1f GB/s\n", cached,
           threads, file_rate(cache_alone, NULL));
    bar("file in the page cache to device", cached / line, 0.75, "of pinned");
    if (direct < 0) {
        printf("  left out: files past the page cache (%s has no O_DIRECT)\n", folder);
    } else {
        disk = file_rate(disk_alone, NULL);
        uncached = file_rate(file_up_uncached, ring);
        disk = most(disk, file_rate(disk_alone, NULL)); /* before and after */
        printf("  file not there: %.2f GB/s; %d threads that read it with O_DIRECT: %.2f GB/s\n",
               uncached, READERS, disk);
        bar("file not in the page cache to device", uncached / disk, 0.9, "of these");
    }
    runs = RUNS;
}

static void smalls(gpupool_ring *ring) {
    for (int i = 0; i < 2; i++) {
        size_t bytes = i ? 65536 : 4096;
        double a, b;
        char what[80];
        small(ring, bytes, &a, &b);
        snprintf(what, sizeof what, "%zu KiB, call to return: %.2f, CUDA %.2f us", bytes >> 10, a,
                 b);
        bar(what, b / a, i ? 1 : 0.9, "x CUDA's");
    }
}

static void bars(double up_line, double down_line) {
    gpupool_ring *ring = ring_of(config);
    double up, down, both, plain, away, host, cold = (double)SIZE * 1e-9 / ring_up(ring);
    double up_plain = rate(plain_up, NULL), down_plain = rate(plain_down, NULL);
    gpupool_ring_stats stats;
    threads = 1 + (int)gpi_ground_min((uint64_t)ring->workers_wanted, GPI_RING_WORKERS_ALONE);
    plain = host_rate(0, 0);
    away = host_rate(1, 0);
    host = most(plain, away);
    up = rate(ring_up, ring);
    down = rate(ring_down, ring);
    both = (double)(2 * SIZE) * 1e-9 / timed(both_ways, ring);
    ours("stats", gpupool_ring_get_stats(ring, &stats));
    printf("%zu MiB, GB/s        up     down\n  pinned          %6.1f   %6.1f\n"
           "  cudaMemcpyAsync %6.1f   %6.1f   (ordinary memory)\n"
           "  ring            %6.1f   %6.1f   (%d workers; its first transfer up: %.1f)\n",
           SIZE >> 20, up_line, down_line, up_plain, down_plain, up, down,
           (int)stats.workers, cold);
    printf("  the host's own copy by %d threads: %.1f with memcpy, %.1f past its caches\n", threads,
           plain, away);
    printf("  the same to one block a thread, as slots are: ");
    for (size_t size = (size_t)256 << 10; size <= (size_t)4 << 20; size *= 4)
        printf("%s%zu KiB: %.1f, %.1f", size >> 18 > 1 ? "; " : "", size >> 10, host_rate(0, size),
               host_rate(1, size));
    printf("\n  pinned by the ring: %.1f MiB in %.1f ms; at most in use %.1f MiB; link busy %.2f\n",
           (double)stats.pinned.peak / 1048576, (double)stats.pin_ns * 1e-6,
           (double)stats.used.peak / 1048576, stats.link_busy[0]);
    bar("upload", up / least(up_line, host), 0.88, "of pinned, host copy");
    bar("upload", up / up_plain, 4.5, "x CUDA's");
    bar("download", down / least(down_line, host), 0.85, "of pinned, host copy");
    bar("up and down at once, two streams", both / least(up, down), 1.5, "x one way");
    smalls(ring);
    files(ring, up_line);
    ours("destroy", gpupool_ring_destroy(ring));
}

/* ---- what other choices would make of it ---- */

typedef struct choice {
    const char *name;
    size_t chunk_kib;
    int workers;
} choice; /* 0: the ring's own choice */

static void choices(double up_line, double down_line) {
    static const choice all[] = {{"as it is", 0, 0},
                                 {"chunks of 512 KiB", 512, 0},
                                 {"chunks of 1 MiB", 1024, 0},
                                 {"chunks of 4 MiB", 4096, 0},
                                 {"1 worker", 0, 1},
                                 {"3 workers", 0, 3},
                                 {"5 workers", 0, 5},
                                 {"7 workers", 0, 7},
                                 {"11 workers", 0, 11},
                                 {"15 workers", 0, 15}};
    printf("\nother choices         up GB/s  of pinned   down  of pinned   both    file\n");
    runs = 5;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        gpupool_ring_config with = config;
        gpupool_ring *ring;
        double up, down, both;
        if (all[i].chunk_kib) with.chunk_bytes = all[i].chunk_kib << 10;
        if (all[i].workers) with.workers = all[i].workers;
        ring = ring_of(with);
        up = rate(ring_up, ring);
        down = rate(ring_down, ring);
        both = (double)(2 * SIZE) * 1e-9 / timed(both_ways, ring);
        printf("  %-19s %7.1f %9.2f %8.1f %8.2f %8.1f %7.1f\n", all[i].name, up, up / up_line,
               down, down / down_line, both, file_rate(file_up, ring));
        ours("destroy", gpupool_ring_destroy(ring));
    }
}

int main(int argc, char **argv) {
    double up_line, down_line;
    if (argc > 1) config.bytes = (size_t)strtoull(argv[1], NULL, 10) << 20;
    if (argc > 2) config.chunk_bytes = (size_t)strtoull(argv[2], NULL, 10) << 10;
    if (argc > 3) config.workers = atoi(argv[3]);
    if (argc > 4) folder = argv[4];
    for (int i = 0; i < 2; i++) {
        cuda("stream", cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        cuda("cudaMalloc", cudaMalloc((void **)&device[i], i ? FILE_SIZE : SIZE));
        ordinary[i] = (unsigned char *)malloc(SIZE);
        if (!ordinary[i]) stop("malloc", "no memory");
        memset(ordinary[i], i + 1, SIZE);
    }
    cuda("cudaHostAlloc", cudaHostAlloc((void **)&pinned, SIZE, cudaHostAllocDefault));
    memset(pinned, 3, SIZE);
    up_line = rate(pinned_up, NULL);
    down_line = rate(pinned_down, NULL);
    bars(up_line, down_line);
    choices(up_line, down_line);
    printf("%d bars missed\n", missed);
    return 0;
}
