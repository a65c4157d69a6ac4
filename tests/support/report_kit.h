/* report_kit.h: what the tests of reports share: an arena, and what is written about it. Include it
   after gpupool.h. */
#ifndef REPORT_KIT_H
#define REPORT_KIT_H

#include <stdarg.h>

#include "arena_kit.h"

typedef gpupool_result report(gpupool_arena *, FILE *);
#define MOST ((size_t)1 << 20)
static char text[MOST];
static gpupool_arena *arena;

/* What the report writes, as text; "" if it fails. */
static inline const char *written(report *write) {
    FILE *file = tmpfile();
    size_t length = 0;
    if (CHECK(file != NULL) && write(arena, file) == GPUPOOL_OK) {
        rewind(file);
        length = fread(text, 1, MOST - 1, file);
    }
    fclose(file);
    text[length] = 0;
    return text;
}

static inline void open_named(const char *name, gpupool_source source) {
    gpupool_arena_config config = kit_config(source);
    config.name = name;
    arena = kit_create(&config);
}

/* The text is in what was written, with numbers in their places. */
static inline void says(const char *format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (!strstr(text, line)) check_fail(__FILE__, __LINE__, "is not said: %s", line);
}

static inline int times(const char *words) { /* in the text */
    int count = 0;
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++) count++;
    return count;
}

#endif
