/* Which process has the device's memory, and how do I leave some to other processes?

   First a neighbour takes all but 1 GiB. Then an arena without a limit takes the whole device, and
   the neighbour cannot get 512 MiB. With the limit "-2GiB" the neighbour gets them.
   What to look at: the verdict of the failed allocation says how much memory others have.
   The neighbour is a forked process; on a simulated GPU it is two calls of the simulation.
   Build: nvcc -I.. neighbours.c */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <stdlib.h>

#define GIB ((size_t)1 << 30)

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(EXIT_FAILURE);
}

static size_t device_free_bytes(void) {
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error != cudaSuccess) die("cudaMemGetInfo", cudaGetErrorString(error));
    return free_bytes;
}

#if SIMULATED_GPU
#include "../tests/fakecuda/fakecuda.h"

static void neighbour_starts(void) { fake_device_memory(0, 8 * GIB); }
static void neighbour_ends(void) { fake_other_process(0, 0); }

static int neighbour_takes(size_t bytes) { /* 0 bytes: gives all back */
    if (bytes > device_free_bytes()) return 0;
    fake_other_process(0, bytes);
    return 1;
}
#else
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static int ask[2], answer[2]; /* pipes to the neighbour and from it */
static pid_t neighbour;

/* The neighbour's whole life: a number comes in, so many bytes are held, 1 or 0 goes out. */
static void live_next_door(void) {
    void *held = NULL;
    size_t bytes;
    close(ask[1]); /* so that it ends with its parent */
    while (read(ask[0], &bytes, sizeof bytes) == (ssize_t)sizeof bytes) {
        cudaFree(held);
        held = NULL;
        char fine = bytes == 0 || cudaMalloc(&held, bytes) == cudaSuccess;
        if (write(answer[1], &fine, 1) != 1) break;
    }
    _exit(0);
}

static void neighbour_starts(void) { /* before CUDA is used, which no fork survives */
    if (pipe(ask) != 0 || pipe(answer) != 0) die("neighbour", "no pipe");
    neighbour = fork();
    if (neighbour < 0) die("neighbour", "no process");
    if (neighbour == 0) live_next_door();
    signal(SIGPIPE, SIG_IGN); /* a neighbour that has died is noticed, */
    close(ask[0]);            /* and told */
    close(answer[1]);
}

static int neighbour_takes(size_t bytes) {
    char fine = 0;
    if (write(ask[1], &bytes, sizeof bytes) != (ssize_t)sizeof bytes ||
        read(answer[0], &fine, 1) != 1)
        die("neighbour", "does not answer");
    return fine;
}

static void neighbour_ends(void) {
    close(ask[1]);
    waitpid(neighbour, NULL, 0);
}
#endif

/* Takes blocks of 1 GiB, then of 64 MiB, until the arena refuses, and frees them: the arena keeps
   what it reserved. The bytes that it got; why it got no more. */
static size_t fill(gpupool_arena *arena, gpupool_verdict *why) {
    static void *block[4096];
    size_t count = 0, total = 0;
    for (size_t bytes = GIB; bytes >= GIB / 16; bytes /= 16)
        while (count < 4096 && (block[count] = gpupool_alloc(arena, bytes, 0)) != NULL) {
            count++;
            total += bytes;
        }
    if (gpupool_last_verdict(why) != GPUPOOL_OK) die("fill", gpupool_last_error());
    while (count > 0)
        if (gpupool_free(arena, block[--count], 0) != GPUPOOL_OK) die("free", gpupool_last_error());
    return total;
}

static gpupool_arena *arena_with(const char *limit) {
    gpupool_arena *arena;
    gpupool_arena_config config = {0};
    config.limit_text = limit;
    if (gpupool_arena_create(&arena, &config) != GPUPOOL_OK) die("arena", gpupool_last_error());
    return arena;
}

static void end(gpupool_arena *arena) {
    if (gpupool_arena_destroy(arena) != GPUPOOL_OK) die("destroy", gpupool_last_error());
}

static int neighbour_fits_beside(const char *limit) {
    gpupool_verdict why;
    gpupool_arena *arena = arena_with(limit);
    size_t bytes = fill(arena, &why);
    int fits = neighbour_takes(GIB / 2);
    printf("  limit %s: we get %.1f GiB; then %s\n", limit ? limit : "none",
           (double)bytes / (double)GIB, why.sentence);
    printf("    the neighbour asks for 512 MiB and is %s\n", fits ? "served" : "refused");
    neighbour_takes(0);
    end(arena);
    return fits;
}

int main(void) {
    gpupool_verdict why;
    neighbour_starts();
    if (!neighbour_takes(1)) die("neighbour", "cannot use the GPU"); /* it has its context now */
    gpupool_arena *arena = arena_with(NULL);
    printf("a neighbour takes all but 1 GiB; we ask for 2 GiB\n");
    if (!neighbour_takes(device_free_bytes() - GIB)) die("neighbour", "was refused");
    if (gpupool_alloc(arena, 2 * GIB, 0)) die("alloc", "2 GiB of 1 GiB");
    if (gpupool_last_verdict(&why) != GPUPOOL_OK) die("alloc", gpupool_last_error());
    printf("  verdict: %s\n  others hold %.1f GiB; cause: %s\n\n", why.sentence,
           (double)why.others_bytes / (double)GIB,
           why.cause == GPUPOOL_CAUSE_OTHERS ? "others" : "NOT OTHERS");
    neighbour_takes(0);
    end(arena);

    printf("we take what we can; the neighbour wants a little\n");
    int before = neighbour_fits_beside(NULL);
    int after = neighbour_fits_beside("-2GiB");
    neighbour_ends();
    return why.cause == GPUPOOL_CAUSE_OTHERS && !before && after ? EXIT_SUCCESS : EXIT_FAILURE;
}
