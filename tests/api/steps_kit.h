/* steps_kit.h: how many instructions a thread takes for something, counted one by one: no time, and
   the same on every machine. Include it after check.h.
   A forked child runs the scene; its parent steps it between steps_begin and steps_end, and learns
   the count. So the parent must have called nothing of CUDA before. */
#ifndef STEPS_KIT_H
#define STEPS_KIT_H

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define STEPS_SECTIONS 8

static inline void steps_begin(void) {
    raise(SIGSTOP);
}

static inline void steps_end(void) {
    raise(SIGSTOP);
}

/* Steps the child until it stops itself; -1: it has ended. Two stops in a row frame a section: the
   count has the few instructions of raise in it. */
static inline long steps_until_stop(pid_t child) {
    long steps = 0;
    int status;
    for (;; steps++) {
        if (ptrace(PTRACE_SINGLESTEP, child, 0, 0) || waitpid(child, &status, 0) != child)
            return -1;
        if (!WIFSTOPPED(status)) return -1;
        if (WSTOPSIG(status) == SIGSTOP) return steps;
    }
}

static inline int steps_run_until_stop(pid_t child, int *status) {
    do {
        if (ptrace(PTRACE_CONT, child, 0, 0) || waitpid(child, status, 0) != child) return 0;
    } while (WIFSTOPPED(*status) && WSTOPSIG(*status) != SIGSTOP);
    return WIFSTOPPED(*status);
}

/* Runs the scene in a child; counts[i]: instructions of its section i. Returns how many sections
   there were; -1: this machine does not let a program step another. */
static inline int steps_count(void (*scene)(void), long counts[STEPS_SECTIONS]) {
    int status = 0, sections = 0;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(99);
        atomic_store(&check_bad, 0);
        raise(SIGSTOP);
        scene();
        fflush(stdout);
        _exit(atomic_load(&check_bad) != 0);
    }
    if (!CHECK(child > 0) || !CHECK_EQ(waitpid(child, &status, 0), child)) return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 99) return -1;
    while (sections < STEPS_SECTIONS && steps_run_until_stop(child, &status))
        counts[sections++] = steps_until_stop(child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return sections;
}

#endif
