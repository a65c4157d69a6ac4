/* How do two processes on one GPU use one block without a copy?

   The writer exports its block as a descriptor, which goes over a Unix socket. The reader maps the
   block at an address of its own, finds there what the writer has written in each round, and writes
   its answer into the same memory. CUDA events that both processes have order the work: no host
   waits for the GPU between rounds. (A simulated GPU has no such events; there the host waits
   before it tells the other process.)
   What to look at: both sides find what the other has written. Only the bytes that they check come
   to the host.
   Build: cc share_block.c -I.. -I$CUDA_HOME/include -L$CUDA_HOME/lib64 -lcudart -lpthread */
#define _GNU_SOURCE
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)64 << 20)
#define HALF (BYTES / 2) /* the writer's; the other half is the reader's */
#define ROUNDS 20

static const char *me; /* "writer" or "reader" */
static int peer;       /* a socket to the other process */

static void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s: %s\n", me, what, why);
    exit(EXIT_FAILURE);
}

static void cuda(const char *what, cudaError_t error) {
    if (error != cudaSuccess) die(what, cudaGetErrorString(error));
}

static void pool(const char *what, gpupool_result result) {
    if (result != GPUPOOL_OK) die(what, gpupool_last_error());
}

/* ---- the socket ---- */

static void say(const void *bytes, size_t count) {
    if (send(peer, bytes, count, MSG_NOSIGNAL) != (ssize_t)count) die("socket", "nobody listens");
}

static void hear(void *bytes, size_t count) {
    if (recv(peer, bytes, count, MSG_WAITALL) != (ssize_t)count) die("socket", "nobody answers");
}

/* The struct, with its descriptor beside it. */
typedef struct letter {
    struct msghdr head;
    struct iovec part;
    size_t beside[CMSG_SPACE(sizeof(int)) / sizeof(size_t)]; /* a cmsghdr */
} letter;

static void letter_begin(letter *l, gpupool_exported *exported) {
    memset(l, 0, sizeof *l);
    l->part.iov_base = exported;
    l->part.iov_len = sizeof *exported;
    l->head.msg_iov = &l->part;
    l->head.msg_iovlen = 1;
    l->head.msg_control = l->beside;
    l->head.msg_controllen = sizeof l->beside;
}

static void send_block(gpupool_exported exported) {
    struct cmsghdr *beside;
    letter l;
    letter_begin(&l, &exported);
    beside = CMSG_FIRSTHDR(&l.head);
    beside->cmsg_level = SOL_SOCKET;
    beside->cmsg_type = SCM_RIGHTS;
    beside->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(beside), &exported.descriptor, sizeof(int));
    if (sendmsg(peer, &l.head, MSG_NOSIGNAL) != (ssize_t)sizeof exported) die("socket", "not sent");
}

static gpupool_exported receive_block(void) {
    gpupool_exported exported;
    letter l;
    letter_begin(&l, &exported);
    if (recvmsg(peer, &l.head, MSG_WAITALL | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof exported ||
        !CMSG_FIRSTHDR(&l.head))
        die("socket", "no block came");
    memcpy(&exported.descriptor, CMSG_DATA(CMSG_FIRSTHDR(&l.head)), sizeof(int)); /* here */
    return exported;
}

/* ---- order: my work before my_turn_ends, the other's after my_turn_begins ---- */

static cudaStream_t stream;
static char byte;

#if SIMULATED_GPU
static void meet(void) {}
static void my_turn_ends(void) {
    cuda("wait", cudaStreamSynchronize(stream));
    say("t", 1);
}
static void my_turn_begins(void) { hear(&byte, 1); }
#else
static cudaEvent_t mine, theirs;

static void meet(void) {
    cudaIpcEventHandle_t handle;
    cuda("event", cudaEventCreateWithFlags(&mine, cudaEventInterprocess | cudaEventDisableTiming));
    cuda("cudaIpcGetEventHandle", cudaIpcGetEventHandle(&handle, mine));
    say(&handle, sizeof handle);
    hear(&handle, sizeof handle);
    cuda("cudaIpcOpenEventHandle", cudaIpcOpenEventHandle(&theirs, handle));
}
static void my_turn_ends(void) {
    cuda("record", cudaEventRecord(mine, stream));
    say("t", 1); /* it is recorded: only then may the other wait for it */
}
static void my_turn_begins(void) {
    hear(&byte, 1);
    cuda("wait", cudaStreamWaitEvent(stream, theirs, 0));
}
#endif

/* Whether a half holds this byte, as far as its ends and its middle tell. Waits for the copies. */
static int holds(const char *half, int value) {
    const size_t at[] = {0, HALF / 2, HALF - 1};
    unsigned char found[3] = {0, 0, 0};
    int i, fine = 1;
    for (i = 0; i < 3; i++)
        cuda("copy", cudaMemcpyAsync(&found[i], half + at[i], 1, cudaMemcpyDeviceToHost, stream));
    cuda("copy", cudaStreamSynchronize(stream));
    for (i = 0; i < 3; i++) fine = fine && found[i] == value;
    return fine;
}

/* ---- the two ---- */

static int write_blocks(void) {
    gpupool_arena_config config = {0};
    gpupool_request request = {0};
    gpupool_exported exported;
    gpupool_arena *arena;
    char *block;
    int round, right = 0;
    cuda("stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    config.source = GPUPOOL_SOURCE_MAPPED;
    config.share = GPUPOOL_SHARE_PROCESSES;
    pool("arena", gpupool_arena_create(&arena, &config));
    request.bytes = BYTES;
    request.stream = stream;
    request.flags = GPUPOOL_EXPORTABLE;
    block = (char *)gpupool_alloc_request(arena, &request);
    if (!block) die("alloc", gpupool_last_error());
    pool("export", gpupool_export(arena, block, &exported));
    printf("writer: %zu MiB at %p, exported as descriptor %d\n", BYTES >> 20, (void *)block,
           exported.descriptor);
    send_block(exported);
    meet();
    for (round = 1; round <= ROUNDS; round++) {
        cuda("memset", cudaMemsetAsync(block, round, HALF, stream));
        my_turn_ends();
        my_turn_begins();
        right += holds(block + HALF, round + 100);
    }
    hear(&byte, 1); /* the reader has let go */
    pool("export_close", gpupool_export_close(arena, block)); /* before: a free is E_IN_USE */
    pool("free", gpupool_free(arena, block, stream));
    pool("destroy", gpupool_arena_destroy(arena));
    printf("writer: %d of %d answers were right\n", right, ROUNDS);
    return right != ROUNDS;
}

static int read_blocks(void) {
    gpupool_exported exported = receive_block();
    gpupool_imported imported;
    char *block;
    int round, right = 0;
    cuda("stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    pool("import", gpupool_import(GPUPOOL_DEVICE_CURRENT, &exported, &imported));
    close(exported.descriptor); /* the mapping needs it no more */
    block = (char *)imported.memory;
    printf("reader: %zu MiB at %p, from descriptor %d\n", imported.bytes >> 20, imported.memory,
           exported.descriptor);
    meet();
    for (round = 1; round <= ROUNDS; round++) {
        my_turn_begins();
        right += holds(block, round);
        cuda("memset", cudaMemsetAsync(block + HALF, round + 100, HALF, stream));
        my_turn_ends();
    }
    cuda("wait", cudaStreamSynchronize(stream)); /* import_close waits for no work */
    pool("import_close", gpupool_import_close(&imported));
    say("c", 1);
    printf("reader: %d of %d rounds were as written\n", right, ROUNDS);
    return right != ROUNDS;
}

int main(void) {
    int ends[2], status = -1;
    pid_t child;
    setvbuf(stdout, NULL, _IOLBF, 0);
    me = "main";
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) die("socket", "none");
    child = fork(); /* before either uses CUDA, which no fork survives */
    if (child < 0) die("fork", "no process");
    me = child ? "writer" : "reader";
    peer = ends[child ? 0 : 1];
    close(ends[child ? 1 : 0]);
    if (child == 0) return read_blocks();
    int wrong = write_blocks();
    if (waitpid(child, &status, 0) != child || status != 0) wrong = 1;
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
