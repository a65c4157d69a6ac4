/* A file of any size into device memory: read straight into the ring's pinned memory, by several
   threads, so that host memory never holds more of it than the ring does. Without a file's name it
   loads one that it writes itself.
   Build: nvcc -I.. load_file.c -lpthread
   or: gcc -I.. -I$CUDA_HOME/include load_file.c -L$CUDA_HOME/lib64 -lcudart -lpthread */
#define _GNU_SOURCE
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct source {
    int file;
    size_t bytes, done;
    int shown;                  /* tenths that have been told */
    pthread_mutex_t lock;
} source;

static int failed(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

static void tell(source *from, size_t bytes) {
    pthread_mutex_lock(&from->lock);
    from->done += bytes;
    while (from->shown < (int)(from->done * 10 / from->bytes)) {
        from->shown++;
        printf("%d%%%s", from->shown * 10, from->shown == 10 ? "\n" : " ");
        fflush(stdout);
    }
    pthread_mutex_unlock(&from->lock);
}

/* Called by several threads at once, each for its own part of the file. */
static int read_part(void *to, size_t bytes, uint64_t offset, void *user) {
    source *from = (source *)user;
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = pread(from->file, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (got == 0) return -1; /* the file has become shorter */
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno;
        done += (size_t)got;
    }
    tell(from, bytes);
    return 0;
}

static int load(gpupool_arena *arena, gpupool_ring *ring, source *from) {
    void *block = gpupool_alloc(arena, from->bytes, 0);
    if (!block) return failed("alloc", gpupool_last_error());
    int status = 0;
    if (gpupool_upload_from(ring, block, from->bytes, read_part, from, 0) != GPUPOOL_OK)
        status = failed("upload", gpupool_last_error());
    /* kernels queued on the stream from here on see the whole file */
    gpupool_ring_stats stats;
    if (gpupool_ring_get_stats(ring, &stats) != GPUPOOL_OK)
        status = failed("stats", gpupool_last_error());
    else if (!status)
        printf("%zu bytes at %.1f GB/s through %.1f MiB of pinned memory\n", from->bytes,
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
    source from = {-1, 0, 0, 0, PTHREAD_MUTEX_INITIALIZER};
    struct stat about;
    gpupool_arena *arena;
    gpupool_ring *ring;
    from.file = argc > 1 ? open(argv[1], O_RDONLY) : write_sample();
    if (from.file < 0 || fstat(from.file, &about)) return failed("the file", strerror(errno));
    from.bytes = (size_t)about.st_size;
    if (from.bytes == 0) return failed("the file", "it is empty");
    if (gpupool_arena_create(&arena, NULL) != GPUPOOL_OK)
        return failed("arena", gpupool_last_error());
    if (gpupool_ring_create(&ring, NULL) != GPUPOOL_OK) return failed("ring", gpupool_last_error());
    int status = load(arena, ring, &from);
    if (gpupool_ring_destroy(ring) != GPUPOOL_OK) status = failed("ring", gpupool_last_error());
    if (gpupool_arena_destroy(arena) != GPUPOOL_OK) status = failed("arena", gpupool_last_error());
    close(from.file);
    return status;
}
