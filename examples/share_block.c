/* How do two processes on one GPU use one block without a copy?

   The writer exports its block as a file descriptor, which goes over a Unix socket. The reader maps
   the block at an address of its own, finds there what the writer has written in each round, and
   writes its answer into the same memory. Here each side waits for its stream before it passes the
   turn; events that both processes have (cudaIpcGetEventHandle) would order the work without that.
   Build: cc -I.. -I$CUDA_HOME/include share_block.c -L$CUDA_HOME/lib64 -lcudart -lpthread
   Prints both addresses, and that each side found what the other has written. */
#define _GNU_SOURCE
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "example.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 20 };
static const size_t BYTES = 64 * MIB;

static int peer; /* a socket to the other process */

/* Sends or receives the struct, with the descriptor beside it. */
static void mail(gpupool_exported *exported, int is_sent) {
    size_t beside[CMSG_SPACE(sizeof(int)) / sizeof(size_t)] = {0};
    struct iovec part = {exported, sizeof *exported};
    struct msghdr letter = {0};
    letter.msg_iov = &part;
    letter.msg_iovlen = 1;
    letter.msg_control = beside;
    letter.msg_controllen = sizeof beside;
    struct cmsghdr *head = CMSG_FIRSTHDR(&letter);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &exported->descriptor, sizeof(int));
    ssize_t bytes = is_sent ? sendmsg(peer, &letter, 0) : recvmsg(peer, &letter, MSG_WAITALL);
    if (bytes != (ssize_t)sizeof *exported) FAIL("socket", "the block was not passed on");
    memcpy(&exported->descriptor, CMSG_DATA(CMSG_FIRSTHDR(&letter)), sizeof(int));
}

static void pass_the_turn(void) {
    CUDA(cudaStreamSynchronize(0));
    if (write(peer, "t", 1) != 1) FAIL("socket", "nobody listens");
}

static void wait_for_the_turn(void) {
    char turn;
    if (read(peer, &turn, 1) != 1) FAIL("socket", "nobody answers");
}

static int holds(const char *block, int value) {
    unsigned char found = 0;
    CUDA(cudaMemcpy(&found, block + BYTES / 2, 1, cudaMemcpyDeviceToHost));
    return found == value;
}

static int write_blocks(void) {
    gpupool_arena_config config = {0};
    gpupool_request request = {BYTES, 0, 0, GPUPOOL_OWN_CHUNK, "shared"};
    gpupool_exported exported;
    gpupool_arena *arena;
    int right = 0;
    config.share = GPUPOOL_SHARE_PROCESSES;
    POOL(gpupool_arena_create(&arena, &config));
    char *block = (char *)BLOCK(gpupool_alloc_request(arena, &request));
    POOL(gpupool_export(arena, block, &exported));
    mail(&exported, 1);
    close(exported.descriptor);
    for (int round = 1; round <= ROUNDS; round++) {
        CUDA(cudaMemsetAsync(block, round, BYTES, 0));
        pass_the_turn();
        wait_for_the_turn();
        right += holds(block, round + 100);
    }
    wait_for_the_turn(); /* the reader has let go */
    printf("writer: the block at %p, %d of %d answers right\n", (void *)block, right, ROUNDS);
    POOL(gpupool_free(arena, block, 0));
    POOL(gpupool_arena_destroy(arena));
    return right != ROUNDS;
}

static int read_blocks(void) {
    gpupool_exported exported;
    gpupool_imported imported;
    int right = 0;
    mail(&exported, 0);
    POOL(gpupool_import(0, &exported, &imported));
    close(exported.descriptor); /* the mapping needs it no more */
    char *block = (char *)imported.memory;
    for (int round = 1; round <= ROUNDS; round++) {
        wait_for_the_turn();
        right += holds(block, round);
        CUDA(cudaMemsetAsync(block, round + 100, BYTES, 0));
        pass_the_turn();
    }
    POOL(gpupool_import_close(&imported)); /* its work has finished */
    pass_the_turn();
    printf("reader: the block at %p, %d of %d rounds right\n", (void *)block, right, ROUNDS);
    return right != ROUNDS;
}

int main(void) {
    int ends[2], status = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) FAIL("socket", "none");
    pid_t child = fork(); /* before either uses CUDA, which no fork survives */
    if (child < 0) FAIL("fork", "no process");
    peer = ends[child ? 0 : 1];
    close(ends[child ? 1 : 0]);
    if (!child) return read_blocks();
    int wrong = write_blocks();
    return waitpid(child, &status, 0) != child || status != 0 || wrong;
}
