/* How do I load a large file into device memory, and show progress?

   Several threads read the file straight into the ring's pinned memory, so host memory never holds
   more of the file than the ring does. Parts that are not in the page cache do not enter it. The
   progress comes from tickets, one for each tenth of the file. Without a file's name the program
   writes a file for itself.
   What to look at: the rate, and how little memory is pinned.
   Build: nvcc -I.. load_file.c -lpthread
   or: gcc -I.. -I$CUDA_HOME/include load_file.c -L$CUDA_HOME/lib64 -lcudart -lpthread */
#define _GNU_SOURCE
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARTS 10

static int failed(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

/* Part i of the file, in whole pages but for the last. */
static size_t begin_of(size_t bytes, size_t i) {
    return i == PARTS ? bytes : bytes / PARTS * i / 4096 * 4096;
}

static int load(gpupool_ring *ring, char *block, int file, size_t bytes) {
    gpupool_ticket tickets[PARTS];
    gpupool_transfer part = {0};
    size_t posted = 0, i;
    int status = 0;
    part.is_file = 1;
    part.file = file;
    for (; posted < PARTS && !status; posted++) {
        size_t at = begin_of(bytes, posted);
        part.to = block + at;
        part.offset = at;
        part.bytes = begin_of(bytes, posted + 1) - at;
        part.ticket = &tickets[posted];
        if (gpupool_ring_transfer(ring, &part) != GPUPOOL_OK) {
            status = failed("upload", gpupool_last_error());
            break;
        }
    }
    for (i = 0; i < posted; i++) { /* the block and the file are the transfers' until then */
        if (gpupool_ring_wait(ring, tickets[i], -1) != GPUPOOL_OK)
            status = failed("upload", gpupool_last_error());
        else if (!status) printf("%d%%%s", (int)(i + 1) * 100 / PARTS, i + 1 < PARTS ? " " : "\n");
        fflush(stdout);
    }
    return status; /* what is queued from here on, on any stream, sees the whole file */
}

static int run(gpupool_arena *arena, gpupool_ring *ring, int file, size_t bytes) {
    char *block = (char *)gpupool_alloc(arena, bytes, 0);
    gpupool_ring_stats stats;
    int status;
    if (!block) return failed("alloc", gpupool_last_error());
    status = load(ring, block, file, bytes);
    if (gpupool_ring_get_stats(ring, &stats) != GPUPOOL_OK)
        status = failed("stats", gpupool_last_error());
    else if (!status)
        printf("%zu bytes at %.1f GB/s through %.1f MiB of pinned memory\n", bytes,
               stats.gb_per_s[GPUPOOL_UP], (double)stats.pinned.peak / (1 << 20));
    if (gpupool_free(arena, block, 0) != GPUPOOL_OK) status = failed("free", gpupool_last_error());
    return status;
}

static int write_sample(void) { /* a file of 32 MiB that nobody sees; -1 with errno if it fails */
    static char block[1 << 20];
    char name[] = "/tmp/gpupool-load-XXXXXX";
    int file = mkstemp(name);
    if (file >= 0) unlink(name);
    for (int i = 0; i < 32 && file >= 0; i++)
        if (write(file, block, sizeof block) != (ssize_t)sizeof block) return -1;
    return file;
}

int main(int argc, char **argv) {
    struct stat about;
    gpupool_arena *arena;
    gpupool_ring *ring;
    int file = argc > 1 ? open(argv[1], O_RDONLY) : write_sample();
    if (file < 0 || fstat(file, &about)) return failed("the file", strerror(errno));
    if (about.st_size == 0) return failed("the file", "it is empty");
    if (gpupool_arena_create(&arena, NULL) != GPUPOOL_OK)
        return failed("arena", gpupool_last_error());
    if (gpupool_ring_create(&ring, NULL) != GPUPOOL_OK) return failed("ring", gpupool_last_error());
    int status = run(arena, ring, file, (size_t)about.st_size);
    if (gpupool_ring_destroy(ring) != GPUPOOL_OK) status = failed("ring", gpupool_last_error());
    if (gpupool_arena_destroy(arena) != GPUPOOL_OK) status = failed("arena", gpupool_last_error());
    close(file);
    return status;
}
