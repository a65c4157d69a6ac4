/* What the rings of both editions reach, against CUDA's own copies, the host's and the disk's in
   the same run, and the bars that a ring is held to: make bench-ring. What is compared is measured
   in turns. A second table has other slots and numbers of workers than a ring chooses by itself.
   Usage: ring [RING_MIB [SLOT_KIB [WORKERS [FOLDER]]]], 0 for the default; the file is made in the
   folder, which should not lie in memory. */
#define _GNU_SOURCE
#include "ring_edition.h"

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
#define EDITIONS 2

static const ring_edition *const editions[EDITIONS] = {&ring_second, &ring_third};
static size_t ring_bytes, slot_bytes;
static int wanted_workers;
static cudaStream_t streams[2];
static unsigned char *device[2], *ordinary[2], *pinned;
static const char *folder = "/var/tmp";
static int missed, runs = RUNS_MOST;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
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

/* A ring of an edition, or what is measured without one. */
typedef struct way {
    const ring_edition *edition;
    void *ring;
} way;

/* The median times in seconds of a transfer in each of the ways, which take turns. */
static void timed(double (*transfer)(const way *), const way *ways, double *seconds) {
    double times[EDITIONS][RUNS_MOST];
    for (int i = -1; i < runs; i++)
        for (int e = 0; e < EDITIONS; e++) times[e][i < 0 ? 0 : i] = transfer(&ways[e]);
    for (int e = 0; e < EDITIONS; e++) seconds[e] = median(times[e], runs);
}
static void rates(double (*transfer)(const way *), const way *ways, double bytes, double *out) {
    timed(transfer, ways, out);
    for (int e = 0; e < EDITIONS; e++) out[e] = bytes * 1e-9 / out[e];
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

static double ring_up(const way *w) {
    double start = now();
    w->edition->up(w->ring, device[0], ordinary[0], SIZE, streams[0]);
    sync_stream(streams[0]);
    return now() - start;
}
static double ring_down(const way *w) {
    double start = now();
    w->edition->down(w->ring, ordinary[0], device[0], SIZE, streams[0]);
    return now() - start;
}
static void *other_way(void *user) {
    const way *w = (const way *)user;
    w->edition->down(w->ring, ordinary[1], device[1], SIZE, streams[1]);
    return NULL;
}
static double both_ways(const way *w) {
    double start = now();
    pthread_t other;
    if (pthread_create(&other, NULL, other_way, (void *)(uintptr_t)w)) stop("thread", "none");
    ring_up(w);
    pthread_join(other, NULL);
    return now() - start;
}

/* ---- batches: each is uploaded, and then used by some work on the same stream; two streams ----
 */

#define BATCHES 8
#define BATCH (SIZE / 16)

static int fills; /* of the second buffer, after each batch: as long as an upload takes */

static void use(int on) {
    unsigned char *to = device[1] + FILE_SIZE / 4 * (size_t)(on + 1);
    for (int i = 0; i < fills; i++) cuda("memset", cudaMemsetAsync(to, i, SIZE / 2, streams[on]));
}
static double batches(const way *w) {
    double start = now();
    for (int i = 0; i < BATCHES; i++) {
        w->edition->up(w->ring, device[0] + (size_t)(i % 2) * BATCH, ordinary[0], BATCH,
                       streams[i % 2]);
        use(i % 2);
    }
    for (int i = 0; i < 2; i++) sync_stream(streams[i]);
    return now() - start;
}
static double tickets(const way *w) {
    uint64_t ticket[BATCHES];
    double start = now();
    for (int i = 0; i < BATCHES; i++)
        ticket[i] = w->edition->post(w->ring, device[0] + (size_t)i * BATCH, ordinary[0], BATCH,
                                     streams[0]);
    for (int i = 0; i < BATCHES; i++) w->edition->wait(w->ring, ticket[i]);
    return now() - start;
}

/* ---- the host alone: each thread copies its own part, from one end to the other ---- */

#define THREADS_MOST 65

static int threads; /* the caller and as many as help it */
static int past_caches;

static void *copy_part(void *number) {
    size_t part = SIZE / (size_t)threads / 64 * 64, at = (size_t)(uintptr_t)number * part;
    if (past_caches) ring_third.copy_away(ordinary[1] + at, ordinary[0] + at, part);
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
static double file_up(const way *w) {
    double start = now();
    w->edition->file(w->ring, device[1], file, FILE_SIZE, streams[0]);
    sync_stream(streams[0]);
    return now() - start;
}
static double file_up_uncached(const way *w) {
    uncache();
    return file_up(w);
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
static void small(const way *ways, size_t bytes, double *us) {
    static double times[EDITIONS + 1][SMALL_RUNS];
    int count = bytes > MIB ? SMALL_RUNS / 10 | 1 : SMALL_RUNS;
    for (int i = 0; i < count; i++)
        for (int e = 0; e <= EDITIONS; e++) {
            const unsigned char *from = ordinary[0] + ((size_t)(i % 61) << 16) % (SIZE - bytes + 1);
            double start = now();
            if (e == EDITIONS)
                cuda("copy",
                     cudaMemcpyAsync(device[0], from, bytes, cudaMemcpyHostToDevice, streams[0]));
            else ways[e].edition->up(ways[e].ring, device[0], from, bytes, streams[0]);
            times[e][i] = now() - start;
            sync_stream(streams[0]);
        }
    for (int e = 0; e <= EDITIONS; e++) us[e] = median(times[e], count) * 1e6;
}

/* ---- the tables ---- */

static void bar(const char *what, const double *got, double wanted, const char *unit) {
    printf("  %-40s %6.2f %6.2f  %-22s bar %4.2f  %s\n", what, got[0], got[1], unit, wanted,
           got[1] >= wanted ? "met" : "MISSED");
    missed += got[1] < wanted;
}
static void bar_of(const char *what, const double *got, double by, double wanted,
                   const char *unit) {
    double parts[EDITIONS];
    for (int e = 0; e < EDITIONS; e++) parts[e] = got[e] / by;
    bar(what, parts, wanted, unit);
}

static void open_all(way *ways, size_t slot, int workers) {
    for (int e = 0; e < EDITIONS; e++) {
        ways[e].edition = editions[e];
        ways[e].ring = editions[e]->open(ring_bytes, slot, workers);
    }
}
static void close_all(const way *ways) {
    for (int e = 0; e < EDITIONS; e++) ways[e].edition->close(ways[e].ring);
}

static void files(const way *ways, double line) {
    double cached[EDITIONS], uncached[EDITIONS], disk;
    runs = 3;
    write_file();
    rates(file_up, ways, (double)FILE_SIZE, cached);
    printf("  file in the page cache: %.1f, %.1f GB/s\n", cached[0], cached[1]);
    bar_of("file in the page cache", cached, line, 0.75, "of pinned");
    if (direct < 0) {
        printf("  left out: files past the page cache (%s has no O_DIRECT)\n", folder);
    } else {
        disk = rate(disk_alone, (double)FILE_SIZE);
        rates(file_up_uncached, ways, (double)FILE_SIZE, uncached);
        disk = most(disk, rate(disk_alone, (double)FILE_SIZE)); /* before and after */
        printf("  file not there: %.2f, %.2f GB/s; %d threads that read it with O_DIRECT: %.2f\n",
               uncached[0], uncached[1], READERS, disk);
        bar_of("file not in the page cache", uncached, disk, 0.9, "of 8 threads, O_DIRECT");
    }
    runs = RUNS_MOST;
}

static void smalls(const way *ways) {
    static const struct {
        size_t bytes;
        double wanted;
    } all[] = {{4096, 0.9},    {65536, 1},   {131072, 0},  {MIB, 0},
               {4 * MIB, 1.5}, {8 * MIB, 0}, {16 * MIB, 0}};
    printf("call to return, us: second, third edition, CUDA\n");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double us[EDITIONS + 1], speed[EDITIONS];
        char what[80];
        if (all[i].bytes > SIZE) break;
        small(ways, all[i].bytes, us);
        snprintf(what, sizeof what, "%zu KiB: %.1f, %.1f, %.1f", all[i].bytes >> 10, us[0], us[1],
                 us[2]);
        for (int e = 0; e < EDITIONS; e++) speed[e] = us[EDITIONS] / us[e];
        if (all[i].wanted > 0) bar(what, speed, all[i].wanted, "x CUDA's speed");
        else printf("  %-40s %6.2f %6.2f  x CUDA's speed\n", what, speed[0], speed[1]);
    }
}

/* What the first transfers of a ring cost: pinning, and starting threads. */
static void cold(void) {
    way ways[EDITIONS];
    for (int bytes = 4; bytes <= 1024; bytes *= 16) {
        double first[EDITIONS], second[EDITIONS];
        size_t size = (size_t)bytes * MIB < SIZE ? (size_t)bytes * MIB : SIZE;
        open_all(ways, slot_bytes, wanted_workers);
        for (int i = 0; i < 2; i++)
            for (int e = 0; e < EDITIONS; e++) {
                double start = now();
                ways[e].edition->up(ways[e].ring, device[0], ordinary[0], size, streams[0]);
                sync_stream(streams[0]);
                *(i ? &second[e] : &first[e]) = (now() - start) * 1e3;
            }
        printf("  first and second upload of %4zu MiB, ms: %.2f %.2f; %.2f %.2f\n", size >> 20,
               first[0], second[0], first[1], second[1]);
        close_all(ways);
    }
}

static void overlap(const way *ways) {
    double apart[EDITIONS], together[EDITIONS], part[EDITIONS], posted[EDITIONS], fill;
    fills = 0;
    timed(batches, ways, apart);
    sync_stream(streams[0]);
    fills = 1;
    fill = now();
    for (int i = 0; i < 8; i++) use(0);
    sync_stream(streams[0]);
    fill = (now() - fill) / 8;
    fills = (int)most(1, apart[1] / BATCHES / fill + 0.5);
    timed(batches, ways, together);
    timed(tickets, ways, posted);
    printf("%d batches of %zu MiB on two streams, ms: uploads %.2f, %.2f; work %.2f; both %.2f, "
           "%.2f; as tickets %.2f, %.2f\n",
           BATCHES, BATCH >> 20, apart[0] * 1e3, apart[1] * 1e3, fill * fills * BATCHES * 1e3,
           together[0] * 1e3, together[1] * 1e3, posted[0] * 1e3, posted[1] * 1e3);
    for (int e = 0; e < EDITIONS; e++) part[e] = (apart[e] + fill * fills * BATCHES) / together[e];
    printf("  %-40s %6.2f %6.2f  x both apart\n", "uploads beside work", part[0], part[1]);
}

static void bars(double up_line, double down_line) {
    double up[EDITIONS], down[EDITIONS], both[EDITIONS], part[EDITIONS];
    double up_plain = rate(plain_up, (double)SIZE), down_plain = rate(plain_down, (double)SIZE);
    double plain, away, host;
    way ways[EDITIONS];
    open_all(ways, slot_bytes, wanted_workers);
    ring_up(&ways[0]);
    ring_up(&ways[1]);
    threads = 1 + (int)least(9, ways[0].edition->workers(ways[0].ring));
    past_caches = 0;
    plain = rate(host_copy, (double)SIZE);
    past_caches = 1;
    away = rate(host_copy, (double)SIZE);
    host = most(plain, away);
    rates(ring_up, ways, (double)SIZE, up);
    rates(ring_down, ways, (double)SIZE, down);
    rates(both_ways, ways, (double)(2 * SIZE), both);
    printf("%zu MiB, GB/s        up     down\n  pinned          %6.1f   %6.1f\n"
           "  cudaMemcpyAsync %6.1f   %6.1f   (ordinary memory)\n",
           SIZE >> 20, up_line, down_line, up_plain, down_plain);
    for (int e = 0; e < EDITIONS; e++)
        printf("  %-15s %6.1f   %6.1f   both ways %.1f; %d workers, %.0f MiB pinned\n",
               editions[e]->name, up[e], down[e], both[e], editions[e]->workers(ways[e].ring),
               (double)editions[e]->pinned(ways[e].ring) / (double)MIB);
    printf("  the host's own copy by %d threads: %.1f with memcpy, %.1f past its caches\n", threads,
           plain, away);
    printf("%-42s %6s %6s\n", "", "second", "third");
    bar_of("upload", up, least(up_line, host), 0.88, "of pinned, host copy");
    bar_of("upload", up, up_plain, 4.5, "x CUDA's");
    bar_of("download", down, least(down_line, host), 0.85, "of pinned, host copy");
    for (int e = 0; e < EDITIONS; e++) part[e] = both[e] / least(up[e], down[e]);
    bar("up and down at once, two streams", part, 1.4, "x one way");
    smalls(ways);
    overlap(ways);
    files(ways, up_line);
    close_all(ways);
    cold();
}

/* What other choices would make of it. */
static void choices(double up_line, double down_line) {
    static const struct {
        const char *name;
        size_t slot_kib;
        int workers;
    } all[] = {
        {"as it is", 0, 0},          {"slots of 512 KiB", 512, 0}, {"slots of 1 MiB", 1024, 0},
        {"slots of 4 MiB", 4096, 0}, {"1 worker", 0, 1},           {"3 workers", 0, 3},
        {"5 workers", 0, 5},         {"7 workers", 0, 7},          {"9 workers", 0, 9},
        {"11 workers", 0, 11},       {"15 workers", 0, 15},        {"7, 1 MiB", 1024, 7},
        {"9, 1 MiB", 1024, 9}};
    printf("\nother choices, GB/s     second: up   down   both   file   third: up   down   both   "
           "file\n");
    runs = 5;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double up[EDITIONS], down[EDITIONS], both[EDITIONS], by_file[EDITIONS];
        way ways[EDITIONS];
        open_all(ways, all[i].slot_kib ? all[i].slot_kib << 10 : slot_bytes,
                 all[i].workers ? all[i].workers : wanted_workers);
        rates(ring_up, ways, (double)SIZE, up);
        rates(ring_down, ways, (double)SIZE, down);
        rates(both_ways, ways, (double)(2 * SIZE), both);
        runs = 3;
        rates(file_up, ways, (double)FILE_SIZE, by_file);
        runs = 5;
        printf("  %-22s", all[i].name);
        for (int e = 0; e < EDITIONS; e++)
            printf("     %6.1f %6.1f %6.1f %6.1f", up[e], down[e], both[e], by_file[e]);
        printf("\n");
        close_all(ways);
    }
    printf("  pinned                     %6.1f %6.1f\n", up_line, down_line);
}

int main(int argc, char **argv) {
    double up_line, down_line;
    if (argc > 1) ring_bytes = (size_t)strtoull(argv[1], NULL, 10) << 20;
    if (argc > 2) slot_bytes = (size_t)strtoull(argv[2], NULL, 10) << 10;
    if (argc > 3) wanted_workers = atoi(argv[3]);
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
    up_line = rate(pinned_up, (double)SIZE);
    down_line = rate(pinned_down, (double)SIZE);
    bars(up_line, down_line);
    choices(up_line, down_line);
    printf("%d bars missed\n", missed);
    return 0;
}
