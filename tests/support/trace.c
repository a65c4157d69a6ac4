/* zlib's headers are on few machines, the gzip program on all: packed files come through a pipe. */
#define _POSIX_C_SOURCE 200809L
#include "trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RMM_HEADER "Thread,Time,Action,Pointer,Size,Stream"
#define RMM_FIELDS 6
#define EVENT_FIELDS 4
#define MAX_BYTES ((uint64_t)1 << 48) /* of one block: more is a damaged number */
#define OF_A_THREAD ((uint64_t)1 << 63) /* a thread's default stream; no handle has this bit */
#define FREED UINT32_MAX /* beside slots in a name's entry */
#define NEW (UINT32_MAX - 1)

typedef struct entry { /* what became of the block that the file calls so */
    uint64_t name;
    uint32_t slot, used;
} entry;

typedef struct reader {
    trace *out;
    const char *path;
    unsigned long line;
    int failed;
    entry *names; /* a hash map; names are never taken out */
    size_t name_room, name_count;
    uint64_t *slot_id, *slot_bytes;
    uint32_t *spare; /* slots, a stack, so that few serve and stay in the cache */
    size_t slot_room, spares, event_room, stream_room;
    uint64_t live_bytes, serial; /* RMM uses a pointer again: its blocks are numbered here */
} reader;

static int wrong(reader *r, const char *format, ...) {
    va_list args;
    if (r->failed++) return -1;
    va_start(args, format);
    if (r->line) fprintf(stderr, "%s:%lu: ", r->path, r->line);
    else fprintf(stderr, "%s: ", r->path);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    return -1;
}

/* The array with room for one more item, doubled if need be. */
static void *roomy(void *array, size_t *room, size_t used, size_t item_bytes) {
    if (used < *room) return array;
    *room = *room ? *room * 2 : 256;
    array = realloc(array, *room * item_bytes);
    if (array) return array;
    fprintf(stderr, "a trace: host memory is out\n");
    exit(EXIT_FAILURE);
}

/* ---- names ---- */

/* Linear probing: the entry that holds the name, or the empty one where it belongs. */
static entry *place(entry *names, size_t room, uint64_t name) {
    uint64_t hash = name * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(hash ^ (hash >> 32)) & (room - 1);
    while (names[at].used && names[at].name != name) at = (at + 1) & (room - 1);
    return &names[at];
}

static entry *find(reader *r, uint64_t name) {
    entry *e;
    if (r->name_count >= r->name_room / 2) {
        size_t old = r->name_room, room = old ? 2 * old : 1024;
        entry *grown = calloc(room, sizeof *grown);
        if (!grown) exit(EXIT_FAILURE);
        for (size_t i = 0; i < old; i++)
            if (r->names[i].used) *place(grown, room, r->names[i].name) = r->names[i];
        free(r->names);
        r->names = grown;
        r->name_room = room;
    }
    e = place(r->names, r->name_room, name);
    if (!e->used) {
        *e = (entry){name, NEW, 1};
        r->name_count++;
    }
    return e;
}

static uint32_t stream_index(trace *t, size_t *room, uint64_t number) {
    uint32_t i = 0;
    while (i < t->streams && t->stream_number[i] != number) i++;
    if (i < t->streams) return i;
    t->stream_number = roomy(t->stream_number, room, t->streams, sizeof *t->stream_number);
    t->stream_number[t->streams++] = number;
    return i;
}

/* ---- events; name is what the file calls the block ---- */

static void add(reader *r, trace_event event, uint64_t stream) {
    trace *t = r->out;
    event.stream = stream_index(t, &r->stream_room, stream);
    t->event = roomy(t->event, &r->event_room, t->events, sizeof *t->event);
    t->event[t->events++] = event;
}

static uint32_t take_slot(reader *r) {
    trace *t = r->out;
    size_t room = r->slot_room, same = room;
    if (r->spares) return r->spare[--r->spares];
    r->slot_id = roomy(r->slot_id, &r->slot_room, t->slots, sizeof *r->slot_id);
    r->slot_bytes = roomy(r->slot_bytes, &room, t->slots, sizeof *r->slot_bytes);
    r->spare = roomy(r->spare, &same, t->slots, sizeof *r->spare);
    return (uint32_t)t->slots++;
}

static int add_alloc(reader *r, uint64_t name, uint64_t id, uint64_t bytes, uint64_t stream) {
    trace *t = r->out;
    entry *e = find(r, name);
    if (e->slot < NEW) return wrong(r, "block %" PRIu64 ": allocated twice without a free", name);
    if (!bytes) return wrong(r, "block %" PRIu64 ": has 0 bytes", name);
    if (bytes > MAX_BYTES) return wrong(r, "block %" PRIu64 ": has an absurd size", name);
    e->slot = take_slot(r);
    r->slot_id[e->slot] = id;
    r->slot_bytes[e->slot] = bytes;
    r->live_bytes += bytes;
    if (r->live_bytes > t->peak_live_bytes) {
        t->peak_live_bytes = r->live_bytes;
        t->peak_event = t->events;
    }
    add(r, (trace_event){id, bytes, e->slot, 0, TRACE_BLOCK}, stream);
    return 0;
}

static int add_free(reader *r, uint64_t name, uint64_t stream) {
    entry *e = find(r, name);
    uint32_t slot = e->slot;
    if (slot == NEW) return wrong(r, "block %" PRIu64 ": freed, but never allocated", name);
    if (slot == FREED) return wrong(r, "block %" PRIu64 ": freed twice", name);
    e->slot = FREED;
    r->live_bytes -= r->slot_bytes[slot];
    r->spare[r->spares++] = slot;
    add(r, (trace_event){r->slot_id[slot], 0, slot, 0, TRACE_BLOCK}, stream);
    return 0;
}

static int add_use(reader *r, uint64_t name, uint64_t stream) {
    entry *e = find(r, name);
    if (e->slot >= NEW) return wrong(r, "block %" PRIu64 ": used, but not live", name);
    add(r, (trace_event){name, 0, e->slot, 0, TRACE_USE}, stream);
    return 0;
}

/* ---- lines ---- */

/* A whole word that is a number; base 16 takes a 0x in front. */
static int number(reader *r, const char *what, const char *word, int base, uint64_t *value) {
    char *end;
    errno = 0;
    *value = strtoull(word, &end, base);
    if (!errno && !*end && strchr("0123456789abcdefABCDEF", word[0]) && word[0]) return 0;
    return wrong(r, "bad %s '%s'", what, word);
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

static int read_event(reader *r, char *line) {
    char *word[EVENT_FIELDS];
    int n = cut(line, 0, word, EVENT_FIELDS);
    char verb = n ? word[0][0] : '#';
    uint64_t first, bytes = 0, stream;
    if (verb == '#') return 0;
    if (word[0][1] || !strchr("afuo", verb) || n != (verb == 'a' ? 4 : 3))
        return wrong(r, "neither 'a ID BYTES STREAM' nor 'f ID STREAM'");
    if (number(r, verb == 'o' ? "size" : "id", word[1], 10, &first)) return -1;
    if (verb == 'a' && number(r, "size", word[2], 10, &bytes)) return -1;
    if (number(r, "stream", word[n - 1], 10, &stream)) return -1;
    if (verb == 'a') return add_alloc(r, first, first, bytes, stream);
    if (verb == 'f') return add_free(r, first, stream);
    if (verb == 'u') return add_use(r, first, stream);
    add(r, (trace_event){.bytes = first, .kind = TRACE_IN_VAIN}, stream);
    return 0;
}

static int read_rmm(reader *r, char *line) {
    char *word[RMM_FIELDS];
    uint64_t thread, pointer, bytes, stream;
    int is_alloc;
    if (!*line) return 0;
    if (cut(line, 1, word, RMM_FIELDS) != RMM_FIELDS)
        return wrong(r, "not the six fields %s", RMM_HEADER);
    if (strcmp(word[2], "allocate failure") == 0) return 0;
    is_alloc = strcmp(word[2], "allocate") == 0;
    if (!is_alloc && strcmp(word[2], "free") != 0 && strcmp(word[2], "deallocate") != 0)
        return wrong(r, "unknown action '%s'", word[2]);
    if (number(r, "thread", word[0], 10, &thread) || number(r, "pointer", word[3], 16, &pointer) ||
        number(r, "size", word[4], 10, &bytes) ||
        number(r, "stream", word[5], strncmp(word[5], "0x", 2) ? 10 : 16, &stream))
        return -1;
    if (bytes == 0) return 0; /* RMM logs these too, and they hold no memory */
    if (stream == 1) stream = 0; /* handles that stand for the default stream, */
    if (stream == 2) stream = OF_A_THREAD | thread; /* and for each thread's own */
    return is_alloc ? add_alloc(r, pointer, r->serial++, bytes, stream)
                    : add_free(r, pointer, stream);
}

static void read_lines(reader *r, FILE *file) {
    char *text = NULL;
    size_t room = 0;
    ssize_t length;
    int is_rmm = 0;
    while (!r->failed && (length = getline(&text, &room, file)) >= 0) {
        r->line++;
        if (memchr(text, 0, (size_t)length)) wrong(r, "holds a zero byte: this is no text");
        text[strcspn(text, "\r\n")] = 0;
        if (r->line == 1 && strcmp(text, RMM_HEADER) == 0) is_rmm = 1;
        else if (is_rmm) read_rmm(r, text);
        else read_event(r, text);
    }
    if (!r->failed && ferror(file)) {
        r->line = 0;
        wrong(r, "%s", strerror(errno));
    }
    free(text);
}

/* ---- files ---- */

/* By the first two bytes, not by the name. */
static int is_packed(FILE *file) {
    unsigned char magic[2] = {0, 0};
    size_t got = fread(magic, 1, sizeof magic, file);
    rewind(file);
    return got == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
}

static void read_packed(reader *r) {
    char command[4200];
    FILE *pipe;
    if (strchr(r->path, '\'') || strlen(r->path) > 4000) {
        wrong(r, "a packed file with such a name cannot be read");
        return;
    }
    snprintf(command, sizeof command, "gzip -dc '%s' 2> /dev/null", r->path);
    pipe = popen(command, "r");
    if (!pipe) {
        wrong(r, "gzip cannot be started");
        return;
    }
    read_lines(r, pipe);
    if (pclose(pipe) == 0 || r->failed) return;
    r->line = 0;
    wrong(r, "gzip is missing, or cannot unpack it: truncated or damaged");
}

int trace_read(trace *t, const char *path) {
    reader r = {.out = t, .path = path};
    FILE *file = fopen(path, "r");
    *t = (trace){0};
    if (!file) return wrong(&r, "%s", strerror(errno));
    if (is_packed(file)) read_packed(&r);
    else read_lines(&r, file);
    fclose(file);
    r.line = 0;
    if (!r.failed && t->events == 0) wrong(&r, "no events in it");
    free(r.names);
    free(r.slot_id);
    free(r.slot_bytes);
    free(r.spare);
    if (r.failed) trace_free(t);
    return r.failed ? -1 : 0;
}

void trace_free(trace *t) {
    free(t->event);
    free(t->stream_number);
    *t = (trace){0};
}
