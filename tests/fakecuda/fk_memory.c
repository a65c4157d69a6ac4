/* Memory: physical pieces and address ranges.
 *
 * Device bytes live in one sparse memory file, each piece at its own offset, never used twice, so a
 * 140 GiB device costs nothing until it is touched. Device addresses come out of one large
 * range where nothing lies, so a host that follows one faults; the bytes are reached by a second
 * mapping of the piece, made when they are first touched.
 *
 * Seen on an H100 (CUDA 13.0): cudaMalloc takes device memory in 2 MiB steps above 1 MiB; smaller
 * blocks share such a step, where here they take steps of 512 bytes.
 *
 * Assumed: managed memory counts as device memory but never runs out of it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fk.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
    int        file;
    uint64_t   file_end;
    uint64_t   cursor;         /* where the search for a free address begins */
    fk_range **ranges;         /* by address */
    size_t     n, room;
    long       pieces, mappings;
    size_t     used[FK_DEVICES], total[FK_DEVICES], other[FK_DEVICES];
    unsigned   peers[FK_DEVICES];
    size_t     pinned, pinned_peak, pinned_limit;
    int        ready;
} fk = {.file = -1};

static void fk_stop(const char *why) {
    fprintf(stderr, "fakecuda: %s\n", why);
    abort();
}

void fk_memory_defaults(void) {
    int i;
    for (i = 0; i < FK_DEVICES; i++) {
        fk.total[i] = (size_t)140 << 30;
        fk.other[i] = 0;
        fk.peers[i] = 0;
    }
    fk.pinned_limit = 0;
    fk.pinned_peak = fk.pinned;
    fk.cursor = FK_DEVICE_BASE + FK_HANDLE_ROOM;
}

void fk_memory_start(void) {
    if (fk.ready) return;
    fk.ready = 1;
    fk.file = memfd_create("fakecuda", MFD_CLOEXEC);
    if (fk.file < 0 || ftruncate(fk.file, (off_t)1 << 50)) fk_stop("cannot make a memory file");
    pthread_atfork(NULL, NULL, fk_after_fork_in_child);
    fk_memory_defaults();
    fk_streams_defaults();
}

/* ---- ranges ---- */

static size_t fk_first_above(uint64_t address) {
    size_t low = 0, high = fk.n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (fk.ranges[middle]->base > address) high = middle;
        else low = middle + 1;
    }
    return low;
}

fk_range *fk_find_range(uint64_t address) {
    size_t i = fk_first_above(address);
    if (i == 0 || address - fk.ranges[i - 1]->base >= fk.ranges[i - 1]->bytes) return NULL;
    return fk.ranges[i - 1];
}

fk_range *fk_add_range(uint64_t base, size_t bytes, fk_kind kind, int device, fk_piece *piece) {
    fk_range *range = fk_new(1, sizeof *range);
    size_t i = fk_first_above(base);
    if (fk.n == fk.room) {
        fk.room = fk.room ? 2 * fk.room : 64;
        fk.ranges = fk_grow(fk.ranges, fk.room, sizeof *fk.ranges);
    }
    fk_shift(fk.ranges + i + 1, fk.ranges + i, (fk.n - i) * sizeof *fk.ranges);
    fk.ranges[i] = range;
    fk.n++;
    range->base = base;
    range->bytes = bytes;
    range->kind = kind;
    range->device = device;
    range->piece = piece;
    if (kind == FK_RESERVED) range->entries = fk_new(bytes / FK_GRANULE, sizeof *range->entries);
    return range;
}

void fk_drop_range(fk_range *range) {
    size_t i = fk_first_above(range->base) - 1;
    fk_shift(fk.ranges + i, fk.ranges + i + 1, (fk.n - i - 1) * sizeof *fk.ranges);
    fk.n--;
    free(range->entries);
    free(range);
}

static uint64_t fk_round(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

/* Next fit, so that a freed address comes back late and a stale pointer meets a hole. */
static uint64_t fk_pick_from(uint64_t at, uint64_t end, uint64_t bytes, uint64_t alignment) {
    size_t i = fk_first_above(at);
    if (i > 0 && fk.ranges[i - 1]->base + fk.ranges[i - 1]->bytes > at)
        at = fk.ranges[i - 1]->base + fk.ranges[i - 1]->bytes;
    for (;;) {
        uint64_t start = fk_round(at, alignment);
        if (start < at || start > end || end - start < bytes) return 0;
        if (i == fk.n || fk.ranges[i]->base >= start + bytes) return start;
        at = fk.ranges[i]->base + fk.ranges[i]->bytes;
        i++;
    }
}

/* Leaves a gap behind each range, so that running off its end touches nothing that is mapped. */
uint64_t fk_pick_address(size_t bytes, size_t alignment) {
    uint64_t gap = alignment, at = 0;
    uint64_t first = FK_DEVICE_BASE + FK_HANDLE_ROOM;
    if (bytes > FK_DEVICE_END - first - gap) return 0;
    at = fk_pick_from(fk.cursor, FK_DEVICE_END, bytes + gap, alignment);
    if (!at) at = fk_pick_from(first, FK_DEVICE_END, bytes + gap, alignment);
    if (at) fk.cursor = at + bytes + gap;
    return at;
}

/* ---- pieces ---- */

size_t fk_device_total(int device) { return fk.total[device]; }

size_t fk_device_free_bytes(int device) {
    size_t gone = fk.used[device] + fk.other[device];
    return gone < fk.total[device] ? fk.total[device] - gone : 0;
}

static int fk_on_device(fk_kind kind) { return kind <= FK_MANAGED; }

static fk_piece *fk_make_piece(size_t bytes, int device, fk_kind kind) {
    fk_piece *piece = fk_new(1, sizeof *piece);
    piece->bytes = bytes;
    piece->device = device;
    piece->kind = kind;
    fk.pieces++;
    return piece;
}

fk_piece *fk_new_piece(size_t bytes, int device, fk_kind kind) {
    fk_piece *piece;
    if (fk_on_device(kind)) {
        if (kind != FK_MANAGED && bytes > fk_device_free_bytes(device)) return NULL;
        fk.used[device] += bytes;
    } else {
        if (fk.pinned_limit && fk.pinned + bytes > fk.pinned_limit) return NULL;
        fk.pinned += bytes;
        if (fk.pinned > fk.pinned_peak) fk.pinned_peak = fk.pinned;
    }
    piece = fk_make_piece(bytes, device, kind);
    piece->refs = 1;
    piece->file_at = fk.file_end;
    if (kind <= FK_RESERVED) fk.file_end += fk_round(bytes, FK_GRANULE);
    return piece;
}

/* So that another process finds them: a descriptor of this one's, and a place in that file. */
int fk_memory_file(void) { return fk.file; }

/* Of another process's memory, at a place in its file; it is counted there. Nobody holds it yet. */
fk_piece *fk_import_piece(int file, uint64_t at, size_t bytes, int device) {
    fk_piece *piece = fk_make_piece(bytes, device, FK_RESERVED);
    piece->file = file;
    piece->file_at = at;
    return piece;
}

static void fk_forget_bytes(const fk_piece *piece) {
    size_t bytes = (size_t)fk_round(piece->bytes, 4096);
    munmap(piece->view, bytes);
    if (piece->kind > FK_RESERVED || piece->file) return;
    if (fallocate(fk.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)piece->file_at,
                  (off_t)bytes))
        fk_stop("cannot give memory back to the host");
}

void fk_unref_piece(fk_piece *piece) {
    if (--piece->refs > 0) return;
    fk_oracle_drop(piece);
    if (piece->file) close(piece->file);
    else if (fk_on_device(piece->kind)) fk.used[piece->device] -= piece->bytes;
    else fk.pinned -= piece->bytes;
    if (piece->view && piece->kind != FK_REGISTERED) fk_forget_bytes(piece);
    fk.pieces--;
    free(piece);
}

unsigned char *fk_bytes(const fk_extent *extent) {
    fk_piece *piece = extent->piece;
    if (!piece->view) {
        void *p = mmap(NULL, (size_t)fk_round(piece->bytes, 4096), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_NORESERVE, piece->file ? piece->file : fk.file,
                       (off_t)piece->file_at);
        if (p == MAP_FAILED) fk_stop("cannot map device memory");
        piece->view = p;
    }
    return piece->view + extent->at;
}

/* ---- from an address to a piece ---- */

int fk_peer_allowed(int device, int peer) {
    return device == peer || (fk.peers[device] >> peer & 1u);
}

void fk_allow_peer(int device, int peer) { fk.peers[device] |= 1u << peer; }

static void fk_forbid_peers(int device) {
    int i;
    for (i = 0; i < FK_DEVICES; i++) fk.peers[i] &= ~(1u << device);
    fk.peers[device] = 0;
}

static void fk_extent_reserved(const fk_range *range, uint64_t offset, int device, fk_extent *out) {
    const fk_entry *entry = &range->entries[offset / FK_GRANULE];
    if (!entry->piece) return;
    out->piece = entry->piece;
    out->at = entry->index * FK_GRANULE + (size_t)(offset % FK_GRANULE);
    out->has_access = (int)(entry->access >> device & 1u);
}

/* The longest stretch of at most so many bytes that lies in one piece. */
fk_extent fk_extent_at(uint64_t address, size_t bytes, int device) {
    fk_extent out = {NULL, 0, 0, -1, 0};
    const fk_range *range = fk_find_range(address);
    out.bytes = bytes;
    if (!range) {
        size_t next = fk_first_above(address);
        if (next < fk.n && fk.ranges[next]->base - address < bytes)
            out.bytes = (size_t)(fk.ranges[next]->base - address);
        if (address >= FK_DEVICE_BASE && address < FK_DEVICE_END) out.kind = (int)FK_MALLOC;
        return out;
    }
    out.kind = (int)range->kind;
    if (range->kind == FK_RESERVED) {
        out.bytes = FK_GRANULE - (size_t)((address - range->base) % FK_GRANULE);
        fk_extent_reserved(range, address - range->base, device, &out);
        if (out.piece) out.bytes = out.piece->bytes - out.at;
    } else {
        out.piece = range->piece;
        out.at = (size_t)(address - range->base);
        out.bytes = range->bytes - out.at;
        out.has_access = range->kind != FK_MALLOC || fk_peer_allowed(device, range->device);
    }
    if (out.bytes > bytes) out.bytes = bytes;
    return out;
}

/* ---- dropping ---- */

void fk_count_mapping(int by) { fk.mappings += by; }

static void fk_unmap_all(fk_range *range) {
    size_t i;
    for (i = 0; range->mapped > 0 && i < range->bytes / FK_GRANULE; i++) {
        fk_piece *piece = range->entries[i].piece;
        if (!piece) continue;
        range->mapped--;
        if (range->entries[i].index != 0) continue;
        fk_count_mapping(-1);
        fk_unref_piece(piece);
    }
}

void fk_memory_drop_device(int device) {
    size_t i = fk.n;
    while (i-- > 0) {
        fk_range *range = fk.ranges[i];
        if (device >= 0 && (range->device != device || range->kind == FK_RESERVED)) continue;
        if (range->kind == FK_RESERVED) fk_unmap_all(range);
        else fk_unref_piece(range->piece);
        fk_drop_range(range);
    }
    if (device >= 0) fk_forbid_peers(device);
    else fk_handles_drop();
    if (fk.n == 0) {
        free(fk.ranges);
        fk.ranges = NULL;
        fk.room = 0;
    }
    if (fk.pieces == 0) fk.file_end = 0;
}

long fk_memory_objects(void) { return (long)fk.n + fk_handle_objects(); }

/* ---- controls ---- */

static int fk_in_table(int device) { return device >= 0 && device < FK_DEVICES; }

static void fk_set_total(int device, size_t bytes) {
    if (fk_in_table(device)) fk.total[device] = bytes;
}

/* Never more than this process leaves: nobody can hold what another has. */
static void fk_set_other(int device, size_t bytes) {
    size_t most;
    if (!fk_in_table(device)) return;
    fk.other[device] = 0;
    most = fk_device_free_bytes(device);
    fk.other[device] = bytes < most ? bytes : most;
}

FK_CONTROL(fake_device_memory, (int device, size_t bytes), fk_set_total(device, bytes))
FK_CONTROL(fake_other_process, (int device, size_t bytes), fk_set_other(device, bytes))
FK_QUESTION(size_t, fake_used_bytes, (int device), fk_in_table(device) ? fk.used[device] : 0)
FK_QUESTION(long, fake_mappings, (void), fk.mappings)
FK_QUESTION(size_t, fake_pinned_bytes, (void), fk.pinned)
FK_QUESTION(size_t, fake_pinned_peak, (void), fk.pinned_peak)
FK_CONTROL(fake_pinned_limit, (size_t bytes), fk.pinned_limit = bytes)
