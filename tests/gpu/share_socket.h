/* share_socket.h: two processes, and an exported block that goes from one to the other over a Unix
   socket (SCM_RIGHTS). C and C++; include it after gpupool.h. */
#ifndef SHARE_SOCKET_H
#define SHARE_SOCKET_H

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* The struct and its descriptor; with NULL the struct is empty, and nothing goes with it. 1: sent.
   The other process may be gone: no signal then. */
static inline int share_send(int socket, const gpupool_exported *exported) {
    gpupool_exported empty;
    struct msghdr message;
    struct iovec part;
    size_t control[CMSG_SPACE(sizeof(int)) / sizeof(size_t)];
    struct cmsghdr *head;
    memset(&empty, 0, sizeof empty);
    memset(&message, 0, sizeof message);
    memset(control, 0, sizeof control);
    part.iov_base = exported ? (void *)(uintptr_t)exported : &empty;
    part.iov_len = sizeof empty;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (exported) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &exported->descriptor, sizeof(int));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof empty;
}

/* The same, with the descriptor's number in this process, which closes it; -1 if none came. 0: the
   other process is gone. */
static inline int share_receive(int socket, gpupool_exported *exported) {
    struct msghdr message;
    struct iovec part;
    size_t control[CMSG_SPACE(sizeof(int)) / sizeof(size_t)];
    struct cmsghdr *head;
    memset(&message, 0, sizeof message);
    memset(control, 0, sizeof control);
    part.iov_base = exported;
    part.iov_len = sizeof *exported;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (recvmsg(socket, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *exported)
        return 0;
    exported->descriptor = -1;
    head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_type == SCM_RIGHTS)
        memcpy(&exported->descriptor, CMSG_DATA(head), sizeof(int));
    return 1;
}

/* A byte: what was done is done. */
static inline int share_say(int socket, char word) {
    return send(socket, &word, 1, MSG_NOSIGNAL) == 1;
}

/* What the other process said; 0: it is gone. */
static inline char share_hear(int socket) {
    char word = 0;
    return read(socket, &word, 1) == 1 ? word : (char)0;
}

/* Before any call of CUDA, which no fork survives. The child's life is live(socket), which returns
   its exit status. A child made later has the sockets of earlier ones too. -1: none was made. */
static inline pid_t share_fork(int *socket, int (*live)(int)) {
    int ends[2];
    pid_t child;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return -1;
    child = fork();
    if (child == 0) {
        close(ends[0]);
        _exit(live(ends[1]));
    }
    close(ends[1]);
    *socket = ends[0];
    return child;
}

/* Its exit status; 1000 and the signal that ended it. */
static inline int share_end_of(pid_t child) {
    int status = -1;
    if (waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#endif
