/* What a ring reaches, against CUDA's own copies, the host's and the disk's in the same run, and
   the bars that it is held to: make bench-ring.
   Usage: ring [FOLDER]; the file is made in the folder, which should not lie in memory. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define GPUPOOL_API static
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BENCH_NAME "ring"
#include "must.h"

#define MIB ((size_t)1 << 20)
#if defined(GPUPOOL_TEST_GPU)
#define SIZE ((size_t)1 << 30)
#define FILE_SIZE ((size_t)4 << 30)
#define SMALL_RUNS 2001
#else /* simulated: shows that the program works, no figure means anything */
#define SIZE ((size_t)8 << 20)
#define FILE_SIZE ((size_t)16 << 20)
#define SMALL_RUNS 11
#endif
#define RUNS_MOST 9

static gpupool_ring *ring; /* the one that is measured */
static cudaStream_t streams[2];
static unsigned char *device[2], *ordinary[2], *pinned;
static const char *folder = "/var/tmp";
static int missed, runs = RUNS_MOST;

static double median(double *times, int count) {
    qsort(times, (size_t)count, sizeof *times, by_value);
    return times[count / 2];
}
static double least(double a, double b) {
    return a < b ? a : b;
}
static double most(double a, double b) {
    return a < b ? b : a;
}

static double rate(double (*transfer)(void), double bytes) {
    double times[RUNS_MOST];
    transfer();
    for (int i = 0; i < runs; i++) times[i] = transfer();
    return bytes * 1e-9 / median(times, runs);
}

/* ---- the transfers: until the data has arrived ---- */

static void sync_stream(cudaStream_t stream) {
    cuda("sync", cudaStreamSynchronize(stream));
}

static double copy(void *to, const void *from) {
    double start = now();
    cuda("copy", cudaMemcpyAsync(to, from, SIZE, cudaMemcpyDefault, streams[0]));
    sync_stream(streams[0]);
    return now() - start;
}
static double pinned_up(void) {
    return copy(device[0], pinned);
}
static double pinned_down(void) {
    return copy(pinned, device[0]);
}
static double plain_up(void) {
    return copy(device[0], ordinary[0]);
}
static double plain_down(void) {
    return copy(ordinary[0], device[0]);
}

static void must(gpupool_result result) {
    ours("ring", result);
}
static gpupool_ring_stats ring_stats(void) {
    gpupool_ring_stats stats;
    must(gpupool_ring_get_stats(ring, &stats));
    return stats;
}

static double ring_up(void) {
    double start = now();
    must(gpupool_upload(ring, device[0], ordinary[0], SIZE, streams[0]));
    sync_stream(streams[0]);
    return now() - start;
}
static double ring_down(void) {
    double start = now();
    must(gpupool_download(ring, ordinary[0], device[0], SIZE, streams[0]));
    return now() - start;
}
static void *other_way(void *unused) {
    must(gpupool_download(ring, ordinary[1], device[1], SIZE, streams[1]));
    return unused;
}
static double both_ways(void) {
    double start = now();
    pthread_t other;
    if (pthread_create(&other, NULL, other_way, NULL)) stop("thread", "none");
    ring_up();
    pthread_join(other, NULL);
    return now() - start;
}

/* ---- the host alone: each thread copies its own part, from one end to the other ---- */

#define THREADS_MOST 65

static int threads; /* the caller and as many as help it */
static int past_caches;

static void *copy_part(void *number) {
    size_t part = SIZE / (size_t)threads / 64 * 64, at = (size_t)(uintptr_t)number * part;
    if (past_caches) gpi_system_copy_away(ordinary[1] + at, ordinary[0] + at, part);
    else memcpy(ordinary[1] + at, ordinary[0] + at, part);
    return NULL;
}
static double on_threads(int count, void *(*run)(void *)) {
    pthread_t others[THREADS_MOST];
    double start = now();
    for (int i = 1; i < count; i++)
        if (pthread_create(&others[i], NULL, run, (void *)(uintptr_t)i)) stop("thread", "none");
    run(NULL);
    for (int i = 1; i < count; i++) pthread_join(others[i], NULL);
    return now() - start;
}
static double host_copy(void) {
    return on_threads(threads, copy_part);
}

/* ---- a file ---- */

#define READERS 8
#define READ_BYTES (2 * MIB)

static int file, direct; /* direct: past the page cache; -1: not to be had here */
static int reads_from;   /* one of them */
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
static double file_up(void) {
    gpupool_file_part part = {file, 0, FILE_SIZE};
    double start = now();
    must(gpupool_upload_file(ring, device[1], &part, streams[0]));
    sync_stream(streams[0]);
    return now() - start;
}
static double file_up_uncached(void) {
    uncache();
    return file_up();
}
static void *read_blocks(void *unused) {
    void *memory = aligned_alloc(4096, READ_BYTES);
    size_t at;
    if (!memory) stop("aligned_alloc", "no memory");
    while ((at = atomic_fetch_add(&next_read, READ_BYTES)) < FILE_SIZE)
        if (pread(reads_from, memory, READ_BYTES, (off_t)at) <= 0) stop("pread", strerror(errno));
    free(memory);
    return unused;
}
static double disk_alone(void) {
    uncache();
    reads_from = direct;
    atomic_store(&next_read, 0);
    return on_threads(READERS, read_blocks);
}

/* ---- small ones: from the call to its return ---- */

/* All in turn, so that none has the better moment; each takes other bytes than the last. */
static void small(size_t bytes, double us[2]) {
    static double times[2][SMALL_RUNS];
    int count = bytes > MIB ? SMALL_RUNS / 10 | 1 : SMALL_RUNS;
    for (int i = 0; i < count; i++)
        for (int by_cuda = 0; by_cuda < 2; by_cuda++) {
            const unsigned char *from = ordinary[0] + ((size_t)(i % 61) << 16) % (SIZE - bytes + 1);
            double start = now();
            if (by_cuda)
                cuda("copy",
                     cudaMemcpyAsync(device[0], from, bytes, cudaMemcpyHostToDevice, streams[0]));
            else must(gpupool_upload(ring, device[0], from, bytes, streams[0]));
            times[by_cuda][i] = now() - start;
            sync_stream(streams[0]);
        }
    for (int i = 0; i < 2; i++) us[i] = median(times[i], count) * 1e6;
}

/* ---- the tables ---- */

static void bar(const char *what, double got, double wanted, const char *unit) {
    printf("  %-40s %6.2f  %-22s bar %4.2f  %s\n", what, got, unit, wanted,
           got >= wanted ? "met" : "MISSED");
    missed += got < wanted;
}

static void files(double line) {
    double cached, uncached, disk;
    runs = 3;
    write_file();
    cached = rate(file_up, (double)FILE_SIZE);
    printf("  file in the page cache: %.1f GB/s\n", cached);
    bar("file in the page cache", cached / line, 0.75, "of pinned");
    if (direct < 0) {
        printf("  left out: files past the page cache (%s has no O_DIRECT)\n", folder);
    } else {
        disk = rate(disk_alone, (double)FILE_SIZE);
        uncached = rate(file_up_uncached, (double)FILE_SIZE);
        disk = most(disk, rate(disk_alone, (double)FILE_SIZE)); /* before and after */
        printf("  file not there: %.2f GB/s; %d threads that read it with O_DIRECT: %.2f\n",
               uncached, READERS, disk);
        bar("file not in the page cache", uncached / disk, 0.9, "of 8 threads, O_DIRECT");
    }
    runs = RUNS_MOST;
}

static void smalls(void) {
    static const struct {
        size_t bytes;
        double wanted;
    } all[] = {{4096, 0.9}, {65536, 1}, {4 * MIB, 1.5}};
    printf("call to return, us: gpupool, CUDA\n");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double us[2];
        char what[80];
        small(all[i].bytes, us);
        snprintf(what, sizeof what, "%zu KiB: %.1f, %.1f", all[i].bytes >> 10, us[0], us[1]);
        bar(what, us[1] / us[0], all[i].wanted, "x CUDA's speed");
    }
}

static void bars(double up_line, double down_line) {
    double up_plain = rate(plain_up, (double)SIZE), down_plain = rate(plain_down, (double)SIZE);
    double up, down, both, plain, away, host;
    must(gpupool_ring_create(&ring, NULL));
    ring_up();
    threads = 1 + (int)least(9, (double)ring_stats().workers);
    past_caches = 0;
    plain = rate(host_copy, (double)SIZE);
    past_caches = 1;
    away = rate(host_copy, (double)SIZE);
    host = most(plain, away);
    up = rate(ring_up, (double)SIZE);
    down = rate(ring_down, (double)SIZE);
    both = rate(both_ways, (double)(2 * SIZE));
    printf("%zu MiB, GB/s        up     down\n  pinned          %6.1f   %6.1f\n"
           "  cudaMemcpyAsync %6.1f   %6.1f   (ordinary memory)\n",
           SIZE >> 20, up_line, down_line, up_plain, down_plain);
    printf("  gpupool         %6.1f   %6.1f   both ways %.1f; %d workers, %.0f MiB pinned\n", up,
           down, both, (int)ring_stats().workers, (double)ring_stats().pinned / (double)MIB);
    printf("  the host's own copy by %d threads: %.1f with memcpy, %.1f past its caches\n", threads,
           plain, away);
    bar("upload", up / least(up_line, host), 0.88, "of pinned, host copy");
    bar("upload", up / up_plain, 4.5, "x CUDA's");
    bar("download", down / least(down_line, host), 0.85, "of pinned, host copy");
    bar("up and down at once, two streams", both / least(up, down), 1.4, "x one way");
    smalls();
    files(up_line);
    must(gpupool_ring_destroy(ring));
}

int main(int argc, char **argv) {
    double up_line, down_line;
    if (argc > 1) folder = argv[1];
    for (int i = 0; i < 2; i++) {
        cuda("stream", cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        cuda("cudaMalloc", cudaMalloc((void **)&device[i], i ? FILE_SIZE : SIZE));
        ordinary[i] = (unsigned char *)malloc(SIZE);
        if (!ordinary[i]) stop("malloc", "no memory");
        memset(ordinary[i], i + 1, SIZE);
    }
    cuda("cudaHostAlloc", cudaHostAlloc((void **)&pinned, SIZE, cudaHostAllocDefault));
    memset(pinned, 3, SIZE);
    up_line = rate(pinned_up, (double)SIZE);
    down_line = rate(pinned_down, (double)SIZE);
    bars(up_line, down_line);
    printf("%d bars missed\n", missed);
    return 0;
}
