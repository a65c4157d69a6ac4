/* How do I load a large file into device memory, and show progress?

   A ring reads the file with several threads straight into its pinned memory, so host memory never
   holds more of the file than the ring does. With a ticket the call returns at once; the program
   asks the ticket how many bytes have arrived, ten times a second.
   Build: cc -I.. -I$CUDA_HOME/include load_file.c -L$CUDA_HOME/lib64 -lcudart -lpthread
   Run: ./a.out [FILE]; without one it loads the program itself.
   Prints the progress, the rate, and how little memory was pinned. */
#define _GNU_SOURCE
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "example.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Until the ticket has its result, the block and the file are the transfer's. */
static void watch(gpupool_ring *ring, gpupool_ticket ticket, size_t bytes) {
    const int64_t tenth_of_a_second = 100000000;
    gpupool_result result;
    uint64_t done;
    do {
        result = gpupool_ring_wait(ring, ticket, tenth_of_a_second, &done);
        printf("%d%% ", (int)(done * 100 / bytes));
        fflush(stdout);
    } while (result == GPUPOOL_E_TIMEOUT);
    POOL(result);
    printf("\n"); /* what is queued from here on, on any stream, sees the whole file */
}

static void load(gpupool_ring *ring, void *block, int file, size_t bytes) {
    gpupool_transfer transfer = {0};
    gpupool_ring_stats stats;
    gpupool_ticket ticket;
    double start = example_seconds();
    transfer.direction = GPUPOOL_UP;
    transfer.to = block;
    transfer.bytes = bytes;
    transfer.is_file = 1;
    transfer.file = file;
    transfer.ticket = &ticket;
    POOL(gpupool_ring_transfer(ring, &transfer));
    watch(ring, ticket, bytes);
    double seconds = example_seconds() - start;
    POOL(gpupool_ring_get_stats(ring, &stats));
    printf("%.1f MiB at %.1f GB/s, through %.1f MiB of pinned memory\n", example_mib(bytes),
           (double)bytes / seconds / 1e9, example_mib(stats.pinned));
}

int main(int count, char **words) {
    struct stat about;
    gpupool_arena *arena;
    gpupool_ring *ring;
    int file = open(words[count > 1], O_RDONLY);
    if (file < 0 || fstat(file, &about)) FAIL("the file", strerror(errno));
    if (about.st_size == 0) FAIL("the file", "it is empty");
    size_t bytes = (size_t)about.st_size;
    POOL(gpupool_arena_create(&arena, NULL));
    POOL(gpupool_ring_create(&ring, NULL));
    void *block = BLOCK(gpupool_alloc(arena, bytes, 0));
    load(ring, block, file, bytes);
    POOL(gpupool_free(arena, block, 0));
    POOL(gpupool_ring_destroy(ring));
    POOL(gpupool_arena_destroy(arena));
    close(file);
    return EXIT_SUCCESS;
}
