#include "trace.h"

#include "lines.h"
#include "trace_build.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RMM_HEADER "Thread,Time,Action,Pointer,Size,Stream"
#define RMM_FIELDS 6
#define EVENT_FIELDS 4
#define CUDA_LEGACY 1 /* the handles that stand for the default stream, and for each thread's own */
#define CUDA_PER_THREAD 2
#define OF_A_THREAD ((uint64_t)1 << 63) /* set in no handle: addresses end below it */

typedef struct reader {
    lines in;
    trace_builder build;
    uint64_t serial; /* RMM uses a pointer again: its blocks are numbered here */
} reader;

/* A whole word that is a number; base 16 takes a 0x in front. 0 or -1. */
static int number(const char *word, int base, uint64_t *value) {
    char *end;
    if (!strchr("0123456789abcdefABCDEF", word[0]) || !word[0]) return -1;
    errno = 0;
    *value = strtoull(word, &end, base);
    return errno || *end ? -1 : 0;
}

static int hex_or_decimal(const char *word, uint64_t *value) {
    return number(word, strncmp(word, "0x", 2) == 0 ? 16 : 10, value);
}

/* Cuts the line in place; the number of words, at most max + 1. An empty word counts only where
   the separator is a comma. */
static int cut(char *line, int comma, char **word, int max) {
    int n = 0;
    for (char *at = line; at;) {
        if (!comma) at += strspn(at, " \t");
        if (!comma && !*at) break;
        if (n < max) word[n] = at;
        if (n++ == max) break;
        at = strpbrk(at, comma ? "," : " \t");
        if (at) *at++ = 0;
    }
    return n;
}

static int told(reader *r, const char *block, const char *wrong) {
    return wrong ? lines_error(&r->in, "block %s: %s", block, wrong) : 0;
}

static int read_event(reader *r, char *line) {
    char *word[EVENT_FIELDS];
    uint64_t id, bytes, stream;
    int n = cut(line, 0, word, EVENT_FIELDS);
    if (n == 0 || word[0][0] == '#') return 0;
    int alloc = n == 4 && strcmp(word[0], "a") == 0;
    int release = n == 3 && strcmp(word[0], "f") == 0;
    if (!alloc && !release)
        return lines_error(&r->in, "neither 'a ID BYTES STREAM' nor 'f ID STREAM'");
    if (number(word[1], 10, &id) != 0) return lines_error(&r->in, "bad id '%s'", word[1]);
    if (number(word[n - 1], 10, &stream) != 0)
        return lines_error(&r->in, "bad stream '%s'", word[n - 1]);
    if (release) return told(r, word[1], trace_add_free(&r->build, id, stream));
    if (number(word[2], 10, &bytes) != 0) return lines_error(&r->in, "bad size '%s'", word[2]);
    return told(r, word[1], trace_add_alloc(&r->build, id, id, bytes, stream));
}

/* The stream that a handle means in a thread. */
static uint64_t rmm_stream(uint64_t handle, uint64_t thread) {
    if (handle == CUDA_LEGACY) return 0;
    return handle == CUDA_PER_THREAD ? OF_A_THREAD | thread : handle;
}

static int read_rmm(reader *r, char *line) {
    char *word[RMM_FIELDS];
    uint64_t thread, pointer, bytes, stream;
    if (!*line) return 0;
    if (cut(line, 1, word, RMM_FIELDS) != RMM_FIELDS)
        return lines_error(&r->in, "not the six fields %s", RMM_HEADER);
    if (strcmp(word[2], "allocate failure") == 0) return 0;
    int alloc = strcmp(word[2], "allocate") == 0;
    if (!alloc && strcmp(word[2], "free") != 0)
        return lines_error(&r->in, "unknown action '%s'", word[2]);
    if (number(word[0], 10, &thread) != 0) return lines_error(&r->in, "bad thread '%s'", word[0]);
    if (number(word[3], 16, &pointer) != 0) return lines_error(&r->in, "bad pointer '%s'", word[3]);
    if (number(word[4], 10, &bytes) != 0) return lines_error(&r->in, "bad size '%s'", word[4]);
    if (hex_or_decimal(word[5], &stream) != 0)
        return lines_error(&r->in, "bad stream '%s'", word[5]);
    if (bytes == 0) return 0; /* RMM logs these too, and they hold no memory */
    stream = rmm_stream(stream, thread);
    const char *wrong = alloc ? trace_add_alloc(&r->build, pointer, r->serial++, bytes, stream)
                              : trace_add_free(&r->build, pointer, stream);
    return told(r, word[3], wrong);
}

static int read_all(reader *r) {
    int rmm = 0;
    for (char *line; (line = lines_next(&r->in));) {
        if (r->in.number == 1 && strcmp(line, RMM_HEADER) == 0) {
            rmm = 1;
            continue;
        }
        if ((rmm ? read_rmm(r, line) : read_event(r, line)) != 0) return -1;
    }
    return 0;
}

int trace_read(trace *t, const char *path) {
    reader r = {.build = {.out = t}};
    *t = (trace){0};
    int result = lines_open(&r.in, path);
    if (result == 0) result = read_all(&r);
    if (lines_close(&r.in) != 0) result = -1;
    if (result == 0 && t->events == 0) {
        fprintf(stderr, "%s: no events in it\n", path);
        result = -1;
    }
    trace_builder_free(&r.build);
    if (result != 0) trace_free(t);
    return result;
}

void trace_free(trace *t) {
    free(t->event);
    free(t->stream_number);
    *t = (trace){0};
}
