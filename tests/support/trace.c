#include "trace.h"

#include "lines.h"
#include "trace_build.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RMM_HEADER "Thread,Time,Action,Pointer,Size,Stream"
#define RMM_FIELDS 6
#define EVENT_FIELDS 5
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

/* Each verb with the words behind it: i an id, b bytes, s a stream, A an alignment, or nothing. */
static const struct { char verb; const char *words; } verbs[] = {
    {'a', "ibsA"}, {'f', "is"}, {'o', "bsA"}, {'u', "is"}, {'r', "s"}, {'t', "b"}, {'l', "b"},
    {'q', "i"}, {'w', "b"}, {'m', "s"}, {'s', ""}};

typedef struct event_numbers { uint64_t id, bytes, stream, alignment; } event_numbers;

static int read_word(reader *r, char what, const char *word, event_numbers *e) {
    switch (what) {
    case 'i': return number(word, 10, &e->id) ? lines_error(&r->in, "bad id '%s'", word) : 0;
    case 'b': return number(word, 10, &e->bytes) ? lines_error(&r->in, "bad size '%s'", word) : 0;
    case 's':
        return number(word, 10, &e->stream) ? lines_error(&r->in, "bad stream '%s'", word) : 0;
    default:
        return number(word, 10, &e->alignment) ? lines_error(&r->in, "bad alignment '%s'", word)
                                               : 0;
    }
}

static int add_event(reader *r, char verb, const event_numbers *e, const char *name) {
    trace_builder *b = &r->build;
    switch (verb) {
    case 'a':
        return told(r, name,
                    trace_add_alloc(b, e->id, e->id, e->bytes, e->stream, e->alignment));
    case 'f': return told(r, name, trace_add_free(b, e->id, e->stream));
    case 'u': return told(r, name, trace_add_use(b, TRACE_USE, e->id, e->stream));
    case 'q': return told(r, name, trace_add_use(b, TRACE_SIZE, e->id, 0));
    case 'w': return told(r, name, trace_add_call(b, TRACE_FIT, e->bytes, 0, 0));
    case 'm': return told(r, name, trace_add_call(b, TRACE_MISTAKE, 0, e->stream, 0));
    case 's': return told(r, "none", trace_add_call(b, TRACE_LOOK, 0, 0, 0));
    case 'o':
        return told(r, "in vain",
                    trace_add_call(b, TRACE_IN_VAIN, e->bytes, e->stream, e->alignment));
    case 'r': return told(r, name, trace_add_call(b, TRACE_RETIRE, 0, e->stream, 0));
    case 't': return told(r, name, trace_add_call(b, TRACE_TRIM, e->bytes, 0, 0));
    default: return told(r, name, trace_add_call(b, TRACE_LIMIT, e->bytes, 0, 0));
    }
}

static int read_event(reader *r, char *line) {
    char *word[EVENT_FIELDS];
    event_numbers e = {0, 0, 0, 0};
    int n = cut(line, 0, word, EVENT_FIELDS), i;
    if (n == 0 || word[0][0] == '#') return 0;
    for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++) {
        const char *words = verbs[v].words;
        int most = (int)strlen(words), least = most - (strchr(words, 'A') != NULL);
        if (word[0][0] != verbs[v].verb || word[0][1] || n - 1 < least || n - 1 > most) continue;
        for (i = 1; i < n; i++)
            if (read_word(r, words[i - 1], word[i], &e) != 0) return -1;
        return add_event(r, verbs[v].verb, &e, word[1]);
    }
    return lines_error(&r->in, "neither 'a ID BYTES STREAM' nor 'f ID STREAM'");
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
    if (!alloc && strcmp(word[2], "free") != 0 && strcmp(word[2], "deallocate") != 0)
        return lines_error(&r->in, "unknown action '%s'", word[2]);
    if (number(word[0], 10, &thread) != 0) return lines_error(&r->in, "bad thread '%s'", word[0]);
    if (number(word[3], 16, &pointer) != 0) return lines_error(&r->in, "bad pointer '%s'", word[3]);
    if (number(word[4], 10, &bytes) != 0) return lines_error(&r->in, "bad size '%s'", word[4]);
    if (hex_or_decimal(word[5], &stream) != 0)
        return lines_error(&r->in, "bad stream '%s'", word[5]);
    if (bytes == 0) return 0; /* RMM logs these too, and they hold no memory */
    stream = rmm_stream(stream, thread);
    const char *wrong = alloc ? trace_add_alloc(&r->build, pointer, r->serial++, bytes, stream, 0)
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
