/* How do two processes on one GPU use one block without a copy?

   The writer exports its block as a file descriptor, which goes over a Unix socket. The reader maps
   the block at an address of its own, finds there what the writer has written, and writes its
   answer into the same memory. Here each side waits for its stream before it tells the other one;
   events that both processes have (cudaIpcGetEventHandle) would order the work without that.
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

enum { QUESTION = 7, ANSWER = 42 };
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

static int holds(const char *block, int value) {
    unsigned char found = 0;
    CUDA(cudaMemcpy(&found, block + BYTES / 2, 1, cudaMemcpyDeviceToHost));
    return found == value;
}

static int write_block(void) {
    gpupool_arena_config config = {0};
    gpupool_request request = {BYTES, 0, 0, GPUPOOL_OWN_CHUNK, "shared"};
    gpupool_exported exported;
    gpupool_arena *arena;
    char answered;
    config.share = GPUPOOL_SHARE_PROCESSES;
    POOL(gpupool_arena_create(&arena, &config));
    char *block = (char *)BLOCK(gpupool_alloc_request(arena, &request));
    CUDA(cudaMemsetAsync(block, QUESTION, BYTES, 0));
    CUDA(cudaStreamSynchronize(0));
    POOL(gpupool_export(arena, block, &exported));
    mail(&exported, 1);
    close(exported.descriptor);
    if (read(peer, &answered, 1) != 1) FAIL("socket", "nobody answers");
    int is_right = holds(block, ANSWER);
    printf("writer: the block at %p, the answer is %s\n", (void *)block,
           is_right ? "right" : "wrong");
    POOL(gpupool_free(arena, block, 0));
    POOL(gpupool_arena_destroy(arena));
    return !is_right;
}

static int read_block(void) {
    gpupool_exported exported;
    gpupool_imported imported;
    mail(&exported, 0);
    POOL(gpupool_import(0, &exported, &imported));
    close(exported.descriptor); /* the mapping needs it no more */
    int is_right = holds((char *)imported.memory, QUESTION);
    printf("reader: the block at %p is %s\n", imported.memory, is_right ? "right" : "wrong");
    CUDA(cudaMemsetAsync(imported.memory, ANSWER, BYTES, 0));
    CUDA(cudaStreamSynchronize(0));
    POOL(gpupool_import_close(&imported)); /* its work has finished */
    if (write(peer, "a", 1) != 1) FAIL("socket", "nobody listens");
    return !is_right;
}

int main(void) {
    int ends[2], status = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) FAIL("socket", "none");
    pid_t child = fork(); /* before either uses CUDA, which no fork survives */
    if (child < 0) FAIL("fork", "no process");
    peer = ends[child ? 0 : 1];
    close(ends[child ? 1 : 0]);
    if (!child) return read_block();
    int wrong = write_block();
    return waitpid(child, &status, 0) != child || status != 0 || wrong;
}
