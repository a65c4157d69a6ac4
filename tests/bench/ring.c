/* What the staging ring reaches, against CUDA's own copies in the same run, and the bars it is held
   to: make bench-ring. Usage: ring [RING_MIB [CHUNK_KIB [WORKERS]]], 0 for the default. */
#define _GNU_SOURCE
#define GPUPOOL_IMPLEMENTATION
#include "../../gpupool.h"

#include <pthread.h>
#include <unistd.h>

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
static int missed;

static void stop(const char *what, const char *why) {
    fprintf(stderr, "bench ring: %s: %s\n", what, why);
    exit(1);
}

static void cuda(const char *what, cudaError_t error) {
    if (error != cudaSuccess) stop(what, cudaGetErrorString(error));
}

static void ours(const char *what, gpupool_result result) {
    if (result != GPUPOOL_OK) stop(what, gpupool_last_error());
}

static double now(void) { return (double)gpi_host_now_ns() * 1e-9; }

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of a transfer in seconds. */
static double timed(double (*transfer)(gpupool_ring *), gpupool_ring *ring) {
    double times[RUNS];
    transfer(ring);
    for (int i = 0; i < RUNS; i++) times[i] = transfer(ring);
    qsort(times, RUNS, sizeof *times, by_value);
    return times[RUNS / 2];
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

/* ---- a file ---- */

static int file;

static int read_part(void *to, size_t bytes, uint64_t offset, void *user) {
    (void)user;
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(file, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (got <= 0) return -1;
        done += (size_t)got;
    }
    return 0;
}

static void write_file(void) {
    char name[] = "/tmp/gpupool-bench-XXXXXX";
    file = mkstemp(name);
    if (file < 0) stop(name, strerror(errno));
    unlink(name);
    for (size_t at = 0; at < FILE_SIZE; at += SIZE)
        for (size_t done = 0; done < SIZE;) {
            ssize_t put = write(file, ordinary[0] + done, SIZE - done);
            if (put <= 0) stop("writing the file", strerror(errno));
            done += (size_t)put;
        }
}

static double file_up(gpupool_ring *ring) {
    double start = now();
    ours("upload_from", gpupool_upload_from(ring, device[1], FILE_SIZE, read_part, NULL,
                                            streams[0]));
    cuda("sync", cudaStreamSynchronize(streams[0]));
    return now() - start;
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
    printf("  %-44s %6.2f %-12s bar %5.2f  %s\n", what, got, unit, wanted,
           got >= wanted ? "met" : "MISSED");
    missed += got < wanted;
}

static gpupool_ring *ring_of(int workers) {
    gpupool_ring *ring;
    gpupool_ring_config with = config;
    if (workers) with.workers = workers;
    ours("ring", gpupool_ring_create(&ring, &with));
    return ring;
}

static void large(double up_line, double down_line) {
    gpupool_ring *ring = ring_of(0);
    double up, down, both, cold = (double)SIZE * 1e-9 / ring_up(ring);
    gpupool_ring_stats stats;
    double up_plain = rate(plain_up, NULL), down_plain = rate(plain_down, NULL);
    up = rate(ring_up, ring);
    down = rate(ring_down, ring);
    both = (double)(2 * SIZE) * 1e-9 / timed(both_ways, ring);
    ours("stats", gpupool_ring_get_stats(ring, &stats));
    printf("%zu MiB, GB/s        up     down\n  pinned          %6.1f   %6.1f\n"
           "  cudaMemcpyAsync %6.1f   %6.1f   (ordinary memory)\n"
           "  ring            %6.1f   %6.1f   (%d workers; its first transfer up: %.1f)\n",
           SIZE >> 20, up_line, down_line, up_plain, down_plain, up, down, (int)stats.workers,
           cold);
    printf("  pinned by the ring: %.1f MiB in %.1f ms; at most in use %.1f MiB\n",
           (double)stats.pinned.peak / 1048576, (double)stats.pin_ns * 1e-6,
           (double)stats.used.peak / 1048576);
    bar("upload", up / up_line, 0.88, "of pinned");
    bar("upload", up / up_plain, 4.5, "x CUDA's");
    bar("download", down / down_line, 0.85, "of pinned");
    bar("download", down / down_plain, 2.2, "x CUDA's");
    bar("up and down at once, two streams", both / (up < down ? up : down), 1.5, "x one way");
    write_file();
    bar("file in the page cache to device", (double)FILE_SIZE * 1e-9 / timed(file_up, ring) /
        up_line, 0.7, "of pinned");
    ours("destroy", gpupool_ring_destroy(ring));
    ring = ring_of(1);
    bar("upload with 2 threads in all", rate(ring_up, ring) / up_line, 0.36, "of pinned");
    bar("download with 2 threads in all", rate(ring_down, ring) / down_line, 0.36, "of pinned");
    for (int i = 0; i < 2; i++) {
        size_t bytes = i ? 65536 : 4096;
        double a, b;
        char what[80];
        small(ring, bytes, &a, &b);
        snprintf(what, sizeof what, "%zu KiB, call to return: %.2f, CUDA %.2f us", bytes >> 10, a,
                 b);
        bar(what, b / a, 0.95, "x CUDA's");
    }
    ours("destroy", gpupool_ring_destroy(ring));
}

int main(int argc, char **argv) {
    if (argc > 1) config.bytes = (size_t)strtoull(argv[1], NULL, 10) << 20;
    if (argc > 2) config.chunk_bytes = (size_t)strtoull(argv[2], NULL, 10) << 10;
    if (argc > 3) config.workers = atoi(argv[3]);
    for (int i = 0; i < 2; i++) {
        cuda("stream", cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        cuda("cudaMalloc", cudaMalloc((void **)&device[i], i ? FILE_SIZE : SIZE));
        ordinary[i] = (unsigned char *)malloc(SIZE);
        if (!ordinary[i]) stop("malloc", "no memory");
        memset(ordinary[i], i + 1, SIZE);
    }
    cuda("cudaHostAlloc", cudaHostAlloc((void **)&pinned, SIZE, cudaHostAllocDefault));
    memset(pinned, 3, SIZE);
    large((double)SIZE * 1e-9 / timed(pinned_up, NULL),
          (double)SIZE * 1e-9 / timed(pinned_down, NULL));
    printf("%d bars missed\n", missed);
    return 0;
}
