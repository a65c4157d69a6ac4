/* sabotage_run.h: applies each of a list of saboteurs at every place that it knows, in a scene of
   each source, and asks gpupool_check what is broken. */
#ifndef SABOTAGE_RUN_H
#define SABOTAGE_RUN_H

#include "sabotage_kit.h"

enum { MAPPED = 1, CHUNKED = 2, BOTH = 3 };

/* breaks: what may be named; more than one where the same damage breaks them all. missed: why the
   check may say nothing. Once it says something at every place, the note has to go. */
typedef struct saboteur {
    const char *breaks;
    const char *name;
    int (*apply)(size_t at);
    void (*undo)(void); /* what the log cannot mend */
    int where;
    const char *missed;
} saboteur;

#define PLAIN(breaks, apply, where) {breaks, #apply, apply, NULL, where, NULL}
#define UNDONE(breaks, apply, undo, where) {breaks, #apply, apply, undo, where, NULL}
#define MISSED(breaks, apply, undo, where, why) {breaks, #apply, apply, undo, where, why}

/* Behind the first places, one of so many is broken. */
#ifndef EVERY
#define EVERY 1
#endif
enum { FIRST_PLACES = 8 };

static const saboteur *now;
static long places, misses;

/* The invariant that gpupool_check names; "" if it finds none broken. */
static const char *named(void) {
    static char name[8];
    const char *at;
    name[0] = 0;
    if (gpupool_check(arena) == GPUPOOL_OK) return name;
    at = strstr(gpupool_last_error(), "invariant ");
    if (CHECK(at != NULL)) sscanf(at, "invariant %7s", name);
    return name;
}

static void sabotage(gpupool_source source, const char *where) {
    scene_open(source);
    for (size_t at = 0; now->apply(at); at += at < FIRST_PLACES ? 1 : EVERY, places++) {
        const char *name = named();
        check_case("%s, place %zu", where, at);
        misses += !name[0];
        if (name[0] ? !strstr(now->breaks, name) : !now->missed)
            check_fail(__FILE__, __LINE__, "%s is broken, \"%s\" named", now->breaks, name);
        mend();
        if (now->undo) now->undo();
        named(); /* counts anew what is pending, and leaves the caches as they are */
        CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    }
    scene_close();
}

static void sabotage_all(void) {
    places = misses = 0;
    if (now->where & MAPPED) sabotage(GPUPOOL_SOURCE_MAPPED, "MAPPED");
    if (now->where & CHUNKED) sabotage(GPUPOOL_SOURCE_DEVICE, "DEVICE");
    CHECK(places > 0);
    if (!now->missed) return;
    if (misses == 0) check_fail(__FILE__, __LINE__, "all are noticed: \"%s\" can go", now->missed);
    printf("left out: %s, %s, %ld of %ld: %s\n", now->breaks, now->name, misses, places,
           now->missed);
}

static void run_saboteurs(const saboteur *first, size_t count) {
    for (now = first; now < first + count; now++)
        check_run(now->name, sabotage_all, kit_prepare, kit_settle);
}

#endif
