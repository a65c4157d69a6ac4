/* The race oracle: who last touched each byte of physical memory, and did it happen before?
 *
 * Memory is remembered per piece, not per address, so a granule that comes back elsewhere still
 * knows its past, and one mapped at two addresses has one past. Happens-before comes from the order
 * of calls alone, never from how work ran, so a race is found in every mode, in every run. Each
 * granule keeps its bytes as stretches with the same past: the last write, and the reads since.
 *
 * Host threads share one clock: what one of them knows to be done, all know. So an order that two
 * host threads failed to make between themselves is not found here; the thread sanitizer's task. */
#include "fk.h"

#include <stdlib.h>
#include <string.h>

typedef struct fk_past {
    uint64_t    tick;      /* 0: nobody */
    uint64_t    stream_id;
    const char *name;
    uint32_t    slot;
    int         write;
} fk_past;

typedef struct fk_stretch {
    uint32_t from, to;     /* within the granule */
    uint32_t n, room;
    fk_past  write;
    fk_past *reads;        /* since the write, at most one a slot */
} fk_stretch;

typedef struct fk_newest {
    uint64_t mapping;      /* where the piece begins at the address that was used */
    fk_past  past;
} fk_newest;

typedef struct fk_page {
    fk_stretch *stretches; /* in order; together they cover what was ever touched */
    size_t      n, room;
    fk_newest  *newest;    /* the last of each slot to touch the granule, by mapping */
    size_t      n_newest;
} fk_page;

static int fk_off;

void fk_oracle_enable(int on) { fk_off = !on; }

static fk_page *fk_page_of(fk_piece *piece, size_t granule) {
    size_t n = (piece->bytes + FK_GRANULE - 1) / FK_GRANULE;
    if (!piece->pages) piece->pages = fk_new(n, sizeof *piece->pages);
    if (!piece->pages[granule]) piece->pages[granule] = fk_new(1, sizeof(fk_page));
    return piece->pages[granule];
}

void fk_oracle_drop(fk_piece *piece) {
    size_t i, k, n = (piece->bytes + FK_GRANULE - 1) / FK_GRANULE;
    for (i = 0; piece->pages && i < n; i++) {
        fk_page *page = piece->pages[i];
        if (!page) continue;
        for (k = 0; k < page->n; k++) free(page->stretches[k].reads);
        free(page->stretches);
        free(page->newest);
        free(page);
    }
    free(piece->pages);
    piece->pages = NULL;
}

/* ---- stretches ---- */

static void fk_open_gap(fk_page *page, size_t i) {
    if (page->n == page->room) {
        page->room = page->room ? 2 * page->room : 4;
        page->stretches = fk_grow(page->stretches, page->room, sizeof *page->stretches);
    }
    fk_shift(page->stretches + i + 1, page->stretches + i, (page->n - i) * sizeof *page->stretches);
    page->n++;
}

static size_t fk_first_ending_after(const fk_page *page, uint32_t at) {
    size_t low = 0, high = page->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (page->stretches[middle].to > at) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* Cuts the stretch that at lies inside, so that one begins at at. */
static void fk_cut(fk_page *page, uint32_t at) {
    size_t i = fk_first_ending_after(page, at);
    fk_stretch *left, *right;
    if (i == page->n || page->stretches[i].from >= at) return;
    fk_open_gap(page, i);
    left = &page->stretches[i];
    right = left + 1;
    *left = *right;
    left->to = at;
    right->from = at;
    if (right->room) {
        left->reads = fk_new(right->room, sizeof *left->reads);
        memcpy(left->reads, right->reads, right->n * sizeof *right->reads);
    }
}

static void fk_fill_gap(fk_page *page, size_t i, uint32_t from, uint32_t to) {
    fk_open_gap(page, i);
    memset(&page->stretches[i], 0, sizeof page->stretches[i]);
    page->stretches[i].from = from;
    page->stretches[i].to = to;
}

/* Makes [from, to) be covered by whole stretches and returns the first of them. */
static size_t fk_isolate(fk_page *page, uint32_t from, uint32_t to) {
    size_t i, first;
    fk_cut(page, from);
    fk_cut(page, to);
    first = i = fk_first_ending_after(page, from);
    while (from < to) {
        uint32_t next = i < page->n ? page->stretches[i].from : to;
        if (next > from) fk_fill_gap(page, i, from, next < to ? next : to);
        from = page->stretches[i++].to;
    }
    return first;
}

/* ---- judging ---- */

static int fk_before(const fk_past *past, const fk_clock *clock) {
    return past->tick == 0 || fk_clock_get(clock, past->slot) >= past->tick;
}

static void fk_race(const fk_past *past, const fk_actor *actor, int write, uint64_t address) {
    fk_fail("race at %#llx: %s (stream %llu, operation %llu) %s what %s (stream %llu, operation "
            "%llu) %s, and nothing orders them",
            (unsigned long long)address, actor->name, (unsigned long long)actor->stream_id,
            (unsigned long long)actor->tick, write ? "writes" : "reads", past->name,
            (unsigned long long)past->stream_id, (unsigned long long)past->tick,
            past->write ? "wrote" : "read");
}

static int fk_judge(const fk_stretch *stretch, int write, const fk_actor *actor,
                    uint64_t address) {
    uint32_t i;
    if (!fk_before(&stretch->write, actor->clock)) {
        fk_race(&stretch->write, actor, write, address);
        return 1;
    }
    for (i = 0; write && i < stretch->n; i++)
        if (!fk_before(&stretch->reads[i], actor->clock)) {
            fk_race(&stretch->reads[i], actor, write, address);
            return 1;
        }
    return 0;
}

static fk_past fk_past_of(const fk_actor *actor, int write) {
    fk_past past;
    past.tick = actor->tick;
    past.stream_id = actor->stream_id;
    past.name = actor->name;
    past.slot = actor->slot;
    past.write = write;
    return past;
}

static void fk_add_read(fk_stretch *stretch, const fk_past *past) {
    uint32_t i;
    for (i = 0; i < stretch->n; i++)
        if (stretch->reads[i].slot == past->slot) {
            stretch->reads[i] = *past;
            return;
        }
    if (stretch->n == stretch->room) {
        stretch->room = stretch->room ? 2 * stretch->room : 2;
        stretch->reads = fk_grow(stretch->reads, stretch->room, sizeof *stretch->reads);
    }
    stretch->reads[stretch->n++] = *past;
}

static void fk_note_newest(fk_page *page, const fk_past *past, uint64_t mapping) {
    size_t i = 0;
    while (i < page->n_newest && (page->newest[i].past.slot != past->slot ||
                                  page->newest[i].mapping != mapping)) i++;
    if (i == page->n_newest) {
        page->newest = fk_grow(page->newest, i + 1, sizeof *page->newest);
        page->newest[i].mapping = mapping;
        page->n_newest++;
    }
    page->newest[i].past = *past;
}

/* After a write the stretches have one past in common: the first stands for all. */
static void fk_write_over(fk_page *page, size_t first, size_t count, const fk_past *past) {
    fk_stretch *keep = &page->stretches[first];
    size_t i;
    for (i = first + 1; i < first + count; i++) free(page->stretches[i].reads);
    keep->to = page->stretches[first + count - 1].to;
    keep->write = *past;
    keep->n = 0;
    fk_shift(keep + 1, keep + count, (page->n - first - count) * sizeof *keep);
    page->n -= count - 1;
}

/* One report a touch is enough: silent says that there was one. */
static int fk_touch_page(fk_page *page, uint32_t from, uint32_t to, int write, int must,
                         const fk_actor *actor, uint64_t address, int silent) {
    fk_past past = fk_past_of(actor, write);
    size_t first = fk_isolate(page, from, to), i;
    for (i = first; i < page->n && page->stretches[i].from < to; i++) {
        fk_stretch *stretch = &page->stretches[i];
        uint64_t here = address + (stretch->from - from);
        if (!silent) silent = fk_judge(stretch, write, actor, here);
        if (!silent && must && stretch->write.tick == 0) {
            fk_fail("%s reads bytes at %#llx that nothing has written", actor->name,
                    (unsigned long long)here);
            silent = 1;
        }
        if (!write) fk_add_read(stretch, &past);
    }
    if (write && i > first) fk_write_over(page, first, i - first, &past);
    return silent;
}

void fk_oracle_touch(fk_piece *piece, size_t at, size_t bytes, int write, int must_be_written,
                     const fk_actor *actor, uint64_t address) {
    uint64_t mapping = address - at;
    fk_past past;
    int silent = 0;
    if (fk_off) return;
    if (piece->kind >= FK_MANAGED) must_be_written = 0;   /* the host may have written it */
    while (bytes > 0) {
        size_t granule = at / FK_GRANULE, from = at % FK_GRANULE;
        size_t part = FK_GRANULE - from < bytes ? FK_GRANULE - from : bytes;
        silent = fk_touch_page(fk_page_of(piece, granule), (uint32_t)from,
                               (uint32_t)(from + part), write, must_be_written, actor, address,
                               silent);
        past = fk_past_of(actor, write);
        fk_note_newest(piece->pages[granule], &past, mapping);
        at += part;
        bytes -= part;
        address += part;
    }
}

/* ---- the host ---- */

/* An address that goes is of no interest to work that uses the same memory at another. */
void fk_oracle_release(fk_piece *piece, const fk_clock *known, const char *how, uint64_t mapping) {
    size_t i, k, n = (piece->bytes + FK_GRANULE - 1) / FK_GRANULE;
    if (fk_off || !piece->pages) return;
    for (i = 0; i < n; i++) {
        const fk_page *page = piece->pages[i];
        for (k = 0; page && k < page->n_newest; k++) {
            const fk_past *past = &page->newest[k].past;
            if (mapping && page->newest[k].mapping != mapping) continue;
            if (fk_before(past, known)) continue;
            fk_fail("%s: released while work in flight: %s (stream %llu, operation %llu) %s it, "
                    "and the host does not know it to be done", how, past->name,
                    (unsigned long long)past->stream_id, (unsigned long long)past->tick,
                    past->write ? "writes" : "reads");
            return;
        }
    }
}

/* The mapping is gone; what is done need not be remembered under it. */
void fk_oracle_unmapped(fk_piece *piece, const fk_clock *known, uint64_t mapping) {
    size_t i, k, kept, n = (piece->bytes + FK_GRANULE - 1) / FK_GRANULE;
    for (i = 0; piece->pages && i < n; i++) {
        fk_page *page = piece->pages[i];
        if (!page) continue;
        for (k = kept = 0; k < page->n_newest; k++)
            if (page->newest[k].mapping != mapping || !fk_before(&page->newest[k].past, known))
                page->newest[kept++] = page->newest[k];
        page->n_newest = kept;
    }
}

static int fk_host_page(const fk_page *page, uint32_t from, uint32_t to, int write,
                        const fk_actor *host, uint64_t address) {
    size_t i = fk_first_ending_after(page, from);
    for (; i < page->n && page->stretches[i].from < to; i++)
        if (fk_judge(&page->stretches[i], write, host, address)) return 1;
    return 0;
}

void fk_oracle_host(fk_piece *piece, size_t at, size_t bytes, int write, const fk_clock *known,
                    const char *name, uint64_t address) {
    fk_actor host = {0, 0, 0, NULL, NULL};
    host.clock = known;
    host.name = name;
    if (fk_off || !piece->pages) return;
    while (bytes > 0) {
        size_t granule = at / FK_GRANULE, from = at % FK_GRANULE;
        size_t part = FK_GRANULE - from < bytes ? FK_GRANULE - from : bytes;
        if (piece->pages[granule] &&
            fk_host_page(piece->pages[granule], (uint32_t)from, (uint32_t)(from + part), write,
                         &host, address)) return;
        at += part;
        bytes -= part;
        address += part;
    }
}
