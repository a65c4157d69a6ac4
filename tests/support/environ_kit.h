/* environ_kit.h: what the tests of the environment's GPUPOOL_REPORT share: scenes that are
   processes of their own, in a folder of their own, and what their files say. Include it after
   gpupool.h; the source defines _DEFAULT_SOURCE. */
#ifndef ENVIRON_KIT_H
#define ENVIRON_KIT_H

#include "arena_kit.h"

#include <sys/wait.h>
#include <unistd.h>

#define MOST ((size_t)1 << 20)
static char text[MOST]; /* what a file holds */

static inline const char *read_into(char *room, const char *name) { /* "": there is no such file */
    FILE *file = fopen(name, "rb");
    size_t length = file ? fread(room, 1, MOST - 1, file) : 0;
    room[length] = 0;
    if (file) fclose(file);
    return room;
}

static inline int times(const char *in, const char *words) {
    int count = 0;
    for (; (in = strstr(in, words)) != NULL; in++) count++;
    return count;
}

/* Runs the scene with GPUPOOL_REPORT set (NULL: not), its stderr in file "said". The process leaves
   by exit. */
static inline void run(const char *report, void (*scene)(void)) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        alarm(100);
        if (report) setenv("GPUPOOL_REPORT", report, 1);
        else unsetenv("GPUPOOL_REPORT");
        if (!freopen("said", "w", stderr)) _exit(2);
        atomic_store(&check_bad, 0);
        scene();
        exit(atomic_load(&check_bad) ? EXIT_FAILURE : EXIT_SUCCESS);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

static inline gpupool_arena *opened(const char *name) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_AUTO);
    config.name = name;
    config.limit_bytes = 64 * MIB;
    return kit_create(&config);
}

static inline void fail(gpupool_arena *arena) {
    CHECK(gpupool_alloc(arena, 100 * MIB, 0) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_OUT_OF_MEMORY);
}

/* ---- the folder ---- */

static inline void environ_begin(void) {
    static char folder[] = "/tmp/gpupool_XXXXXX";
    if (!mkdtemp(folder) || chdir(folder) != 0) exit(2);
}

static inline int environ_finish(void) {
    if (system("rm -r \"$PWD\"") != 0) return 2;
    return check_finish();
}

#endif
