/* The race oracle: who last touched each byte of physical memory, and did it happen before?
 *
 * Memory is remembered per piece, not per address, so a granule that comes back elsewhere still
 * knows its past, and one mapped at two addresses has one past. Happens-before comes from the order
 * of calls alone, never from how work ran, so a race is found in every mode, in every run. Each
 * granule keeps its bytes as stretches with the same past: the last write, and the reads since.
 *
 * CUDA's rule for virtual aliases: what is written through one address is seen through another once
 * the device operation that wrote it has ended. So one operation that writes bytes and touches them
 * through a second address as well is a race with itself.
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
    uint64_t    mapping;   /* where the piece begins at the address that was used */
    uint32_t    slot;
    int         write;
} fk_past;

typedef struct fk_stretch {
    uint32_t from, to;     /* within the granule */
    uint32_t n, room;
    fk_past  write;
    fk_past *reads;        /* since the write, at most one operation of each slot */
} fk_stretch;

typedef struct fk_page {
    fk_stretch *stretches; /* in order; together they cover what was ever touched */
    size_t      n, room;
    fk_past    *newest;    /* the last of each slot to touch the granule, by mapping */
    size_t      n_newest;
} fk_page;

typedef struct fk_touch {  /* one access, while it is judged */
    const fk_actor *actor;
    uint64_t        mapping;
    int             write, must_be_written;
    int             told;  /* one report a touch is enough */
} fk_touch;

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

static int fk_same_operation(const fk_past *past, const fk_actor *actor) {
    return past->tick && past->tick == actor->tick && past->slot == actor->slot;
}

/* offset: of the byte in its piece. */
static void fk_race(const fk_past *past, const fk_touch *touch, uint64_t offset) {
    const fk_actor *actor = touch->actor;
    char through[48] = "";
    if (past->mapping != touch->mapping)
        snprintf(through, sizeof through, " through %#llx",
                 (unsigned long long)(past->mapping + offset));
    fk_fail("race at %#llx: %s (stream %llu, operation %llu) %s what %s (stream %llu, operation "
            "%llu) %s%s, and nothing orders them",
            (unsigned long long)(touch->mapping + offset), actor->name,
            (unsigned long long)actor->stream_id, (unsigned long long)actor->tick,
            touch->write ? "writes" : "reads", past->name, (unsigned long long)past->stream_id,
            (unsigned long long)past->tick, past->write ? "wrote" : "read", through);
}

static int fk_clash(const fk_past *past, const fk_touch *touch) {
    if (fk_same_operation(past, touch->actor)) return past->mapping != touch->mapping;
    return !fk_before(past, touch->actor->clock);
}

/* 1: a race, which was told. page_at: where the page begins in its piece. */
static int fk_judge(const fk_stretch *stretch, const fk_touch *touch, uint64_t page_at) {
    uint64_t offset = page_at + stretch->from;
    uint32_t i;
    if (fk_clash(&stretch->write, touch)) {
        fk_race(&stretch->write, touch, offset);
        return 1;
    }
    for (i = 0; touch->write && i < stretch->n; i++)
        if (fk_clash(&stretch->reads[i], touch)) {
            fk_race(&stretch->reads[i], touch, offset);
            return 1;
        }
    return 0;
}

static fk_past fk_past_of(const fk_touch *touch) {
    fk_past past;
    past.tick = touch->actor->tick;
    past.stream_id = touch->actor->stream_id;
    past.name = touch->actor->name;
    past.mapping = touch->mapping;
    past.slot = touch->actor->slot;
    past.write = touch->write;
    return past;
}

/* Takes the place of an older operation of its slot, and not of its own at another address. */
static void fk_add_read(fk_stretch *stretch, const fk_past *past) {
    uint32_t i;
    for (i = 0; i < stretch->n; i++) {
        const fk_past *old = &stretch->reads[i];
        if (old->slot != past->slot) continue;
        if (old->tick == past->tick && old->mapping != past->mapping) continue;
        stretch->reads[i] = *past;
        return;
    }
    if (stretch->n == stretch->room) {
        stretch->room = stretch->room ? 2 * stretch->room : 2;
        stretch->reads = fk_grow(stretch->reads, stretch->room, sizeof *stretch->reads);
    }
    stretch->reads[stretch->n++] = *past;
}

static void fk_note_newest(fk_page *page, const fk_past *past) {
    size_t i = 0;
    while (i < page->n_newest && (page->newest[i].slot != past->slot ||
                                  page->newest[i].mapping != past->mapping)) i++;
    if (i == page->n_newest) {
        page->newest = fk_grow(page->newest, i + 1, sizeof *page->newest);
        page->n_newest++;
    }
    page->newest[i] = *past;
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

static void fk_touch_page(fk_page *page, uint32_t from, uint32_t to, fk_touch *touch,
                          uint64_t page_at) {
    fk_past past = fk_past_of(touch);
    size_t first = fk_isolate(page, from, to), i;
    for (i = first; i < page->n && page->stretches[i].from < to; i++) {
        fk_stretch *stretch = &page->stretches[i];
        if (!touch->told) touch->told = fk_judge(stretch, touch, page_at);
        if (!touch->told && touch->must_be_written && stretch->write.tick == 0) {
            fk_fail("%s reads bytes at %#llx that nothing has written", touch->actor->name,
                    (unsigned long long)(touch->mapping + page_at + stretch->from));
            touch->told = 1;
        }
        if (!touch->write && past.tick) fk_add_read(stretch, &past);
    }
    if (!past.tick) return; /* the host's: what it did is done */
    if (touch->write && i > first) fk_write_over(page, first, i - first, &past);
    fk_note_newest(page, &past);
}

/* One granule after another. */
void fk_oracle_touch(const fk_extent *extent, const fake_access *access, const fk_actor *actor,
                     uint64_t address) {
    size_t at = extent->at, left = extent->bytes;
    fk_touch touch = {actor, address - at, access->write, !access->write && access->value, 0};
    if (fk_off) return;
    if (extent->piece->kind >= FK_MANAGED || extent->piece->is_shared)
        touch.must_be_written = 0; /* the host, or another process, may have written it */
    while (left > 0) {
        size_t granule = at / FK_GRANULE, from = at % FK_GRANULE;
        size_t part = FK_GRANULE - from < left ? FK_GRANULE - from : left;
        fk_touch_page(fk_page_of(extent->piece, granule), (uint32_t)from, (uint32_t)(from + part),
                      &touch, granule * FK_GRANULE);
        at += part;
        left -= part;
    }
}

/* ---- memory that goes ---- */

/* An address that goes is of no interest to work that uses the same memory at another. */
void fk_oracle_release(fk_piece *piece, uint64_t mapping) {
    size_t i, k, n = (piece->bytes + FK_GRANULE - 1) / FK_GRANULE;
    if (fk_off || !piece->pages) return;
    for (i = 0; i < n; i++) {
        const fk_page *page = piece->pages[i];
        for (k = 0; page && k < page->n_newest; k++) {
            const fk_past *past = &page->newest[k];
            if (mapping && past->mapping != mapping) continue;
            if (fk_before(past, fk_known())) continue;
            fk_fail("%s: released while work in flight: %s (stream %llu, operation %llu) %s it, "
                    "and the host does not know it to be done", fk_call_name(), past->name,
                    (unsigned long long)past->stream_id, (unsigned long long)past->tick,
                    past->write ? "writes" : "reads");
            return;
        }
    }
}

/* The mapping is gone; what is done need not be remembered under it. */
void fk_oracle_unmapped(fk_piece *piece, uint64_t mapping) {
    size_t i, k, kept, n = (piece->bytes + FK_GRANULE - 1) / FK_GRANULE;
    for (i = 0; piece->pages && i < n; i++) {
        fk_page *page = piece->pages[i];
        if (!page) continue;
        for (k = kept = 0; k < page->n_newest; k++)
            if (page->newest[k].mapping != mapping || !fk_before(&page->newest[k], fk_known()))
                page->newest[kept++] = page->newest[k];
        page->n_newest = kept;
    }
}
