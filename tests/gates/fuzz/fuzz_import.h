/* fuzz_import.h: what arrives from another process and is to be imported: records that
   gpupool_export made, changed, cut short, or of nobody's making, with descriptors of all kinds. A
   record is imported only if it names an exported block in its right size; any other is refused,
   and nothing is left of the call. */
#ifndef FUZZ_IMPORT_H
#define FUZZ_IMPORT_H

#include "fuzz.h"
#include "share_kit.h"

#include <sys/mman.h>
#include <sys/stat.h>

#define FUZZ_EXPORTS 3
#define FUZZ_IMPORTS 4

typedef struct fuzz_export {
    char *at; /* NULL: there is none */
    gpupool_exported record;
    int times; /* exported so often */
    int byte;  /* what both ends hold */
} fuzz_export;

typedef struct fuzz_import_of {
    gpupool_imported there; /* memory NULL: there is none */
    int of;                 /* the export; -1: it has ended */
} fuzz_import_of;

static struct {
    fuzz_export export[FUZZ_EXPORTS];
    fuzz_import_of import[FUZZ_IMPORTS];
    gpupool_exported record; /* the next import's */
    int file;                /* a descriptor that the program has made; -1: none */
    int other_maps;          /* whether device 1 can map memory */
} fi;

/* ---- what the record names ---- */

static int fuzz_is_file(int descriptor, int other) {
    struct stat a, b;
    return fstat(descriptor, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* The export whose memory the record's descriptor stands for; -1: none. */
static int fuzz_named(void) {
    int descriptor = fi.record.descriptor;
    for (int i = 0; i < FUZZ_EXPORTS; i++)
        if (fi.export[i].times && fuzz_is_file(descriptor, fi.export[i].record.descriptor))
            return i;
    return -1;
}

/* The results that gpupool_import may have, as bits. */
static unsigned fuzz_import_results(int device, int named) {
    const gpupool_exported *r = &fi.record;
    if (r->bytes == 0 || r->bytes > (uint64_t)1 << 48 || r->descriptor < 0 || device < -1 ||
        device > 1)
        return 1u << GPUPOOL_E_ARGUMENT;
    if (device == 1 && !fi.other_maps) return 1u << GPUPOOL_E_UNSUPPORTED;
    if (named >= 0 && r->bytes == fi.export[named].record.bytes) return 1u << GPUPOOL_OK;
    return 1u << GPUPOOL_E_CUDA | 1u << GPUPOOL_E_OUT_OF_MEMORY; /* addresses for its size */
}

/* ---- imports ---- */

/* What a question that fails counts as. */
static unsigned fuzz_import_faulty(void) {
    return fuzz_fault.due.verb ? 1u << GPUPOOL_E_UNSUPPORTED : 0u;
}

typedef struct fuzz_census { long objects, mappings, host, descriptors; size_t used; } fuzz_census;

static fuzz_census fuzz_count(void) {
    return (fuzz_census){fake_live_objects(), fake_mappings(), fail_malloc_live,
                         share_descriptors(), fake_used_bytes(0) + fake_used_bytes(1)};
}

static void fuzz_nothing_is_left(fuzz_census before) {
    fuzz_census now = fuzz_count();
    CHECK_EQ(now.objects, before.objects);
    CHECK_EQ(now.mappings, before.mappings);
    CHECK_EQ(now.host, before.host);
    CHECK_EQ(now.descriptors, before.descriptors);
    CHECK_EQ(now.used, before.used);
}

static void fuzz_import_try(fuzz_step s) {
    static const int devices[] = {0, 0, 0, 1, -1, -2, 2, INT32_MAX};
    fuzz_import_of *to = &fi.import[s.a % FUZZ_IMPORTS];
    int device = devices[s.b % KIT_COUNT(devices)], named = fuzz_named(), well;
    unsigned results = fuzz_import_results(device, named);
    gpupool_exported given = fi.record;
    gpupool_imported none, there;
    fuzz_census before;
    if (to->there.memory) return;
    memset(&none, 0, sizeof none);
    memset(&there, s.c, sizeof there);
    before = fuzz_count();
    well = FUZZ_TRY(gpupool_import(device, &fi.record, &there), results | fuzz_import_faulty());
    CHECK(memcmp(&given, &fi.record, sizeof given) == 0);
    if (!well) {
        CHECK(memcmp(&there, &none, sizeof none) == 0);
        fuzz_nothing_is_left(before);
        return;
    }
    CHECK(results == 1u << GPUPOOL_OK);
    CHECK_EQ(there.bytes, fi.record.bytes);
    CHECK_EQ(there.device, device == 1);
    to->there = there;
    to->of = named;
}

static void fuzz_unimport(fuzz_step s) {
    fuzz_import_of *from = &fi.import[s.a % FUZZ_IMPORTS];
    if (!from->there.memory) {
        CHECK_RESULT(gpupool_import_close(&from->there), GPUPOOL_E_ARGUMENT);
        return;
    }
    if (!FUZZ_TRY(gpupool_import_close(&from->there), fuzz_import_faulty()))
        share_unimport(&from->there);
    CHECK(from->there.memory == NULL && from->there.handle == 0);
}

/* Both ends hold the same at either address, whoever writes. */
static void fuzz_import_use(fuzz_step s) {
    fuzz_import_of *i = &fi.import[s.a % FUZZ_IMPORTS];
    fuzz_export *e;
    char *there = (char *)i->there.memory;
    if (!there || i->of < 0 || i->there.device) return;
    e = &fi.export[i->of];
    kit_expect_mark(kit_stream[0], there, i->there.bytes, e->byte);
    e->byte = s.c;
    kit_mark(kit_stream[0], s.b & 1 ? there : e->at, i->there.bytes, e->byte);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
}

/* ---- exports ---- */

static void fuzz_close_file(void) {
    if (fi.file >= 0) close(fi.file);
    fi.file = -1;
}

static void fuzz_import_export(fuzz_step s) {
    fuzz_export *e = &fi.export[s.a % FUZZ_EXPORTS];
    gpupool_exported before = e->record;
    if (!e->at) {
        if (!FUZZ_TRY(kit_why(e->at = (char *)share_try(1 + s.b % 4 * MIB + s.c, 0)), 0)) return;
        e->byte = s.c;
    }
    if (!FUZZ_TRY(gpupool_export(arena, e->at, &e->record), 0)) {
        CHECK_EQ(e->record.descriptor, -1);
        if (e->times) e->record = before;
        return;
    }
    if (e->times++) CHECK(memcmp(&before, &e->record, sizeof before) == 0);
    else kit_mark(kit_stream[0], e->at, e->record.bytes, e->byte);
    CHECK_EQ(cudaStreamSynchronize(kit_stream[0]), cudaSuccess);
}

/* Ends one export; after the last one the block can be freed. */
static void fuzz_import_unexport(fuzz_step s) {
    int which = s.a % FUZZ_EXPORTS;
    fuzz_export *e = &fi.export[which];
    if (!e->at) return;
    if (e->times) {
        CHECK_RESULT(gpupool_free(arena, e->at, kit_stream[0]), GPUPOOL_E_IN_USE);
        CHECK_RESULT(gpupool_sleep(arena, GPUPOOL_ALL, GPUPOOL_KEEP, NULL), GPUPOOL_E_IN_USE);
        share_unexport(e->at);
        if (--e->times) return;
        fuzz_close_file(); /* a copy of the descriptor is good as long as the block */
        for (int i = 0; i < FUZZ_IMPORTS; i++)
            if (fi.import[i].of == which) fi.import[i].of = -1;
    }
    CHECK_RESULT(gpupool_export_close(arena, e->at), GPUPOOL_E_ARGUMENT);
    if (FUZZ_TRY(gpupool_free(arena, e->at, kit_stream[0]), 0)) e->at = NULL;
}

/* ---- the record ---- */

/* A file that holds so many bytes of an exported descriptor's, and then others. */
static int fuzz_forge(const fuzz_export *e, fuzz_step s) {
    unsigned char bytes[256];
    ssize_t n = pread(e->record.descriptor, bytes, s.b % sizeof bytes, 0);
    int file = memfd_create("forged", MFD_CLOEXEC);
    if (n < 0) n = 0;
    if (s.b & 1) memset(bytes, s.c, n < 8 ? (size_t)n : 8); /* else it is cut short */
    else n = n < 8 ? n : n / 2;
    CHECK_EQ(write(file, bytes, (size_t)n), n);
    return file;
}

/* Another descriptor in the record. */
static void fuzz_descriptor(fuzz_step s) {
    const fuzz_export *e = &fi.export[s.b % FUZZ_EXPORTS];
    int is = e->times > 0, ends[2];
    fuzz_close_file();
    switch (s.a % 7) {
    case 0: if (is) fi.file = dup(e->record.descriptor); break;
    case 1: if (is) fi.file = fuzz_forge(e, s); break;
    case 2: fi.file = open("/dev/null", O_RDWR); break;
    case 3: fi.file = open("/", O_RDONLY); break;
    case 4:
        if (pipe(ends)) return;
        fi.file = ends[s.b & 1];
        close(ends[!(s.b & 1)]);
        break;
    case 5: fi.record.descriptor = s.c; return;
    default:
        close(fi.record.descriptor = dup(0)); /* closed again */
        return;
    }
    fi.record.descriptor = fi.file;
}

static void fuzz_change_record(fuzz_step s) {
    unsigned char *bytes = (unsigned char *)&fi.record;
    size_t at = s.b % sizeof fi.record;
    switch (s.a % 4) {
    case 0: bytes[at] = s.c; break;
    case 1: bytes[at] ^= (unsigned char)(1u << s.c % 8); break;
    case 2: memset(bytes + at, 0, sizeof fi.record - at); break; /* the rest has not arrived */
    default: fi.record.bytes += (uint64_t)(s.c % 16) * 2 * MIB - 16 * MIB;
    }
}

/* All of it is the next bytes of the input. */
static void fuzz_any_record(fuzz_bytes *in) {
    size_t n = in->left < sizeof fi.record ? in->left : sizeof fi.record;
    memcpy(&fi.record, in->at, n);
    in->at += n;
    in->left -= n;
}

/* Device 1 can map memory, or cannot; it never loses what it has mapped. */
static void fuzz_other_device(fuzz_step s) {
    for (int i = 0; i < FUZZ_IMPORTS; i++)
        if (fi.import[i].there.memory && fi.import[i].there.device) return;
    fake_device_vmm(1, fi.other_maps = s.b & 1);
}

/* ---- from first byte to last ---- */

static void fuzz_import_step(fuzz_step s, fuzz_bytes *in) {
    const fuzz_export *e = &fi.export[s.a % FUZZ_EXPORTS];
    switch (s.verb % 16) {
    case 0: fuzz_import_export(s); break;
    case 1: fuzz_import_unexport(s); break;
    case 2: case 3: if (e->times) fi.record = e->record; break;
    case 4: case 5: fuzz_change_record(s); break;
    case 6: fuzz_any_record(in); break;
    case 7: fuzz_descriptor(s); break;
    case 8: case 9: case 10: fuzz_import_try(s); break;
    case 11: fuzz_unimport(s); break;
    case 12: fuzz_import_use(s); break;
    case 13: /* one fault: what it stops is undone, which must not fail, too */
        fuzz_fault.due = s;
        fuzz_fault.due.b = 0;
        fuzz_fault.further = s.b % 4 * 24; /* most of the calls of an import look for others */
        break;
    case 14: fuzz_other_device(s); break;
    default: CHECK_RESULT(gpupool_check(arena), GPUPOOL_OK);
    }
}

static void fuzz_import_close_all(void) {
    fuzz_step s = {0, 0, 0, 0};
    fuzz_fault.due.verb = 0;
    fuzz_close_file();
    fake_device_vmm(1, 1);
    for (s.a = 0; s.a < FUZZ_IMPORTS; s.a++)
        if (fi.import[s.a].there.memory) fuzz_unimport(s);
    for (s.a = 0; s.a < FUZZ_EXPORTS; s.a++)
        while (fi.export[s.a].at && !atomic_load(&check_bad)) fuzz_import_unexport(s);
    kit_close(arena);
    CHECK_EQ(fake_used_bytes(0) + fake_used_bytes(1), 0);
    CHECK_EQ(fake_mappings(), 0);
    CHECK_EQ(share_descriptors(), share_before);
}

static int fuzz_import(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size};
    fuzz_step step;
    if (size < 8 || size > 1024) return 1;
    fuzz_prepare();
    memset(&fi, 0, sizeof fi);
    fi.file = -1;
    fi.other_maps = 1;
    share_before = share_descriptors();
    share_open(0, 64 * MIB);
    while (fuzz_next(&in, &step)) fuzz_import_step(step, &in);
    if (!atomic_load(&check_bad)) fuzz_import_close_all();
    return fuzz_settle();
}

#endif
