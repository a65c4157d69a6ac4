/* Files through the ring: parts of every size and place, in the page cache and not, many at a time;
   files that end too early or shrink, pipes, descriptors that are none; and reads that are short,
   interrupted, or fail, as told by a pread of this program's own.

// build: plain
// build: check2 -O1 -DGPUPOOL_CHECK=2 -DEVERY=5
// build: single -DGPUPOOL_SINGLE_THREAD=1
// build: asan -fsanitize=address,undefined -DEVERY=5
// build: tsan -fsanitize=thread -DEVERY=5
*/
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "gpupool.h"
#include "linked.h"
#include "ring_kit.h"

#define BYTES (5 * MIB + 12345)
#define SEED 5

static gpupool_ring *ring;
static unsigned char *device;
static int file;

/* ---- what becomes of a read ---- */

static atomic_long reads, direct_reads;
static atomic_int shorten;              /* every read gives so many bytes at most; 0: all */
static atomic_int interrupt;            /* so many reads are interrupted */
static atomic_int refuse;               /* the errno of every read beyond refuse_from; 0: none */
static atomic_llong refuse_from;
static atomic_int direct_refused;       /* the same for those past the page cache only */
static atomic_llong shrink_at;          /* the file is cut down when it is read here; 0: never */

static ssize_t read_oddly(int from, void *to, size_t bytes, off_t at) {
    int is_direct = (fcntl(from, F_GETFL) & O_DIRECT) != 0, error;
    reads++;
    direct_reads += is_direct;
    if (shrink_at && at + (off_t)bytes > shrink_at) CHECK_EQ(ftruncate(file, shrink_at), 0);
    if (interrupt > 0 && interrupt-- > 0) error = EINTR;
    else if (is_direct && direct_refused) error = direct_refused;
    else error = at + (off_t)bytes > refuse_from ? (int)refuse : 0;
    if (error) {
        errno = error;
        return -1;
    }
    if (shorten && !is_direct && bytes > (size_t)shorten) bytes = (size_t)shorten;
    return pread(from, to, bytes, at);
}

/* ---- a file with a pattern ---- */

static int file_of(size_t bytes) {
    char name[] = "gpupool-test-XXXXXX"; /* here, where the build is: /tmp may lie in memory */
    unsigned char *block = (unsigned char *)malloc(MIB);
    int made = mkstemp(name);
    if (made < 0 || !block) exit(CHECK(0));
    unlink(name);
    for (size_t at = 0; at < bytes; at += MIB) {
        size_t n = bytes - at < MIB ? bytes - at : MIB;
        kit_pattern_at(block, n, SEED, at);
        CHECK_EQ(write(made, block, n), (ssize_t)n);
    }
    free(block);
    return made;
}

/* Out of the page cache, if the file system does so. */
static void uncache(void) {
    CHECK_EQ(fsync(file), 0);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
}

static void scene_open(int workers) {
    atomic_init(&reads, 0);
    atomic_init(&direct_reads, 0);
    atomic_init(&shorten, 0);
    atomic_init(&interrupt, 0);
    atomic_init(&refuse, 0);
    atomic_init(&direct_refused, 0);
    atomic_init(&refuse_from, 0);
    atomic_init(&shrink_at, 0);
    ring = kit_ring(MIB, 64 * KIB, workers);
    device = kit_device(BYTES);
    file = file_of(BYTES);
}

static void scene_close(void) {
    close(file);
    kit_device_free(device, BYTES);
    CHECK_EQ(kit_ring_stats(ring).used.now <= kit_ring_stats(ring).pinned.now, 1);
    kit_ring_close(ring);
}

static void expect_part(const unsigned char *from, uint64_t offset, size_t bytes) {
    unsigned char *copy = kit_fetch(from, bytes);
    kit_is_pattern(copy, bytes, SEED, (size_t)offset);
    free(copy);
}

static gpupool_result load(uint64_t offset, size_t bytes) {
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_EQ(cudaMemset(device, 0xdd, BYTES), cudaSuccess);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return gpupool_upload_file(ring, device, file, offset, bytes, kit_stream[0]);
}

/* ---- parts ---- */

/* Cached and not, wherever they begin and end, and nothing beside them. */
static void parts_of_every_size(void) {
    static const size_t offsets[] = {0, 1, 4095, 4096, 4097, 65536, 100001, 5 * MIB};
    static const size_t sizes[] = {1, 511, 4096, 65535, 65536, 65537, 300000, MIB + 1, 4 * MIB};
    for (int workers = 0; workers <= 3; workers += 3) {
        scene_open(workers);
        for (int cached = 0; cached < 2; cached++)
            for (size_t i = 0; i < KIT_COUNT(offsets); i++)
                for (size_t k = 0; k < KIT_COUNT(sizes); k++) {
                    if (offsets[i] + sizes[k] > BYTES) continue;
                    if ((i * KIT_COUNT(sizes) + k) % EVERY) continue;
                    check_case("%zu bytes at %zu, cached %d", sizes[k], offsets[i], cached);
                    if (!cached) uncache();
                    CHECK_RESULT(load(offsets[i], sizes[k]), GPUPOOL_OK);
                    unsigned char *all = kit_fetch(device, BYTES);
                    kit_is_pattern(all, sizes[k], SEED, offsets[i]);
                    kit_is_byte(all + sizes[k], BYTES - sizes[k], 0xdd);
                    free(all);
                }
        CHECK_RESULT(load(BYTES, 0), GPUPOOL_OK); /* nothing is fine, at the end too */
        CHECK_RESULT(load(0, BYTES), GPUPOOL_OK);
        expect_part(device, 0, BYTES);
        CHECK_EQ(lseek(file, 0, SEEK_CUR), (off_t)BYTES); /* as it was */
        scene_close();
    }
}

/* What is in the page cache is read there; what is not, past it, where that can be had. */
static void by_the_cache_or_past_it(void) {
    scene_open(0);
    CHECK_RESULT(load(0, BYTES), GPUPOOL_OK); /* just written */
    CHECK_EQ(direct_reads, 0);
    /* asking may have brought in a page; and on a busy machine the system may keep some, for a
       while */
    for (int tries = 0; tries < 50 && direct_reads <= reads - reads / 8; tries++) {
        reads = direct_reads = 0;
        usleep((unsigned)tries * 1000);
        uncache();
        CHECK_RESULT(load(0, BYTES), GPUPOOL_OK);
        if (direct_reads == 0 && tries > 4) break;
    }
    if (direct_reads == 0) check_skip("reads past the page cache", "not on this file system");
    check_case("%ld of %ld reads", (long)direct_reads, (long)reads);
    if (direct_reads) CHECK(direct_reads > reads - reads / 8);
    check_case(" ");
    for (int error = 0; error < 2; error++) { /* the ordinary way does what that one does not */
        uncache();
        direct_refused = error ? EIO : EINVAL;
        CHECK_RESULT(load(1, BYTES - 1), GPUPOOL_OK);
        expect_part(device, 1, BYTES - 1);
    }
    scene_close();
}

static gpupool_result load_part(unsigned char *to, size_t offset, size_t bytes,
                                gpupool_ticket *ticket) {
    gpupool_transfer transfer = kit_transfer(GPUPOOL_UP, to, NULL, bytes, kit_stream[0]);
    transfer.is_file = 1;
    transfer.file = file;
    transfer.offset = offset;
    transfer.ticket = ticket;
    return gpupool_ring_transfer(ring, &transfer);
}

static void tickets_and_their_order(void) {
    gpupool_ticket tickets[8];
    size_t part = BYTES / 8;
    scene_open(2);
    kit_fill(kit_stream[0], device, BYTES, 0x11); /* comes before */
    for (size_t i = 8; i-- > 0;)
        CHECK_RESULT(load_part(device + i * part, i * part, part, &tickets[i]), GPUPOOL_OK);
    for (size_t i = 0; i < 8; i++) {
        CHECK_RESULT(gpupool_ring_wait(ring, tickets[i], -1), GPUPOOL_OK);
        expect_part(device + i * part, i * part, part);
    }
    scene_close();
}

/* Tensors of one file, in another order than they lie there, some of them empty. */
static void many_parts_in_one_call(void) {
    static gpupool_file_part parts[300];
    uint64_t random = 1, at = 0;
    scene_open(2);
    for (size_t i = 0; i < KIT_COUNT(parts); i++) {
        parts[i].bytes = i % 7 ? 1 + (size_t)check_below(&random, 30000) : 0;
        parts[i].offset = check_below(&random, BYTES - parts[i].bytes);
        parts[i].device_dst = parts[i].bytes ? device + at : NULL;
        at += parts[i].bytes;
    }
    CHECK(at <= BYTES);
    CHECK_RESULT(gpupool_upload_file_list(ring, file, parts, KIT_COUNT(parts), kit_stream[0]),
                 GPUPOOL_OK);
    for (size_t i = 0; i < KIT_COUNT(parts); i++)
        if (parts[i].bytes)
            expect_part((unsigned char *)parts[i].device_dst, parts[i].offset, parts[i].bytes);
    parts[100].offset = BYTES; /* one that is not there */
    CHECK_RESULT(gpupool_upload_file_list(ring, file, parts, KIT_COUNT(parts), kit_stream[0]),
                 GPUPOOL_E_FILE);
    CHECK(strstr(gpupool_last_error(), "it ends here") != NULL);
    CHECK_RESULT(gpupool_upload_file_list(ring, file, NULL, 1, kit_stream[0]), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_upload_file_list(ring, file, NULL, 0, kit_stream[0]), GPUPOOL_OK);
    scene_close();
}

/* ---- odd reads ---- */

static void short_and_interrupted_reads(void) {
    for (int workers = 0; workers <= 2; workers += 2) {
        scene_open(workers);
        shorten = 1000;
        interrupt = 50;
        CHECK_RESULT(load(3, 300000), GPUPOOL_OK);
        expect_part(device, 3, 300000);
        CHECK(interrupt <= 0 && reads > 300);
        scene_close();
    }
}

/* The rest of the file was read, or not; the error is told with its words, and where it was. */
static void reads_that_fail(void) {
    for (int workers = 0; workers <= 2; workers += 2) {
        gpupool_ticket ticket;
        scene_open(workers);
        refuse_from = (long long)(3 * MIB);
        refuse = EIO;
        CHECK_RESULT(load(0, BYTES), GPUPOOL_E_FILE);
        CHECK(strstr(gpupool_last_error(), strerror(EIO)) != NULL);
        CHECK_RESULT(load(0, 2 * MIB), GPUPOOL_OK);
        CHECK_RESULT(load_part(device, 1, BYTES - 1, &ticket), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_E_FILE);
        CHECK(strstr(gpupool_last_error(), strerror(EIO)) != NULL);
        refuse = 0;
        CHECK_RESULT(load(0, BYTES), GPUPOOL_OK);
        expect_part(device, 0, BYTES);
        scene_close();
    }
}

/* Several parts of a list: the first failure is told, and later lists are as ever. */
static void parts_that_fail(void) {
    gpupool_file_part parts[3];
    for (int workers = 0; workers <= 2; workers += 2) {
        scene_open(workers);
        for (size_t i = 0; i < KIT_COUNT(parts); i++) {
            parts[i].device_dst = device + i * MIB;
            parts[i].offset = (2 + i) * MIB;
            parts[i].bytes = MIB;
        }
        refuse_from = (long long)(3 * MIB);
        refuse = EIO;
        CHECK_RESULT(gpupool_upload_file_list(ring, file, parts, 3, kit_stream[0]),
                     GPUPOOL_E_FILE);
        CHECK(strstr(gpupool_last_error(), strerror(EIO)) != NULL);
        const char *where = strstr(gpupool_last_error(), "at byte ");
        CHECK(where && strtoull(where + 8, NULL, 10) < 4 * MIB); /* in the second, not the third */
        refuse = 0;
        CHECK_RESULT(gpupool_upload_file_list(ring, file, parts, 3, kit_stream[0]), GPUPOOL_OK);
        expect_part(device, 2 * MIB, 3 * MIB);
        scene_close();
    }
}

/* Known before, it touches nothing; found out while it is read, the destination alone. */
static void files_that_are_too_short(void) {
    char said[80];
    scene_open(2);
    CHECK_RESULT(load(1, BYTES), GPUPOOL_E_FILE);
    snprintf(said, sizeof said, "at byte %zu: it ends here", (size_t)BYTES);
    CHECK(strstr(gpupool_last_error(), said) != NULL);
    CHECK_RESULT(load(BYTES + 1, 1), GPUPOOL_E_FILE);
    unsigned char *untouched = kit_fetch(device, BYTES);
    kit_is_byte(untouched, BYTES, 0xdd);
    free(untouched);
    CHECK_EQ(reads, 0);
    shrink_at = (long long)(2 * MIB);
    CHECK_RESULT(load(0, BYTES), GPUPOOL_E_FILE);
    CHECK(strstr(gpupool_last_error(), "it ends here") != NULL);
    scene_close();
}

static void what_is_no_file(void) {
    int ends[2];
    scene_open(0);
    CHECK_EQ(pipe(ends), 0);
    CHECK_RESULT(gpupool_upload_file(ring, device, ends[0], 0, 100, kit_stream[0]),
                 GPUPOOL_E_FILE);
    CHECK(strstr(gpupool_last_error(), strerror(ESPIPE)) != NULL);
    CHECK_RESULT(gpupool_upload_file(ring, device, -1, 0, 100, kit_stream[0]), GPUPOOL_E_FILE);
    CHECK(strstr(gpupool_last_error(), strerror(EBADF)) != NULL);
    int written = open("/dev/null", O_WRONLY);
    CHECK_RESULT(gpupool_upload_file(ring, device, written, 0, 100, kit_stream[0]),
                 GPUPOOL_E_FILE);
    close(written);
    close(ends[0]);
    close(ends[1]);
    scene_close();
}

static void what_is_refused(void) {
    gpupool_ticket ticket = 77;
    cudaGraph_t graph = NULL;
    scene_open(0);
    CHECK_RESULT(gpupool_upload_file(NULL, device, file, 0, 100, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_upload_file(ring, NULL, file, 0, 100, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_upload_file(ring, device, file, UINT64_MAX, 100, 0), GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_upload_file(ring, device, file, 1, (size_t)INT64_MAX, 0),
                 GPUPOOL_E_ARGUMENT);
    CHECK_RESULT(gpupool_upload_file(ring, device, file, 1, (size_t)INT64_MAX - 1, 0),
                 GPUPOOL_E_FILE); /* some file might have those */
    CHECK_RESULT(gpupool_upload_file_list(NULL, file, NULL, 0, 0), GPUPOOL_E_ARGUMENT);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    CHECK_RESULT(gpupool_upload_file(ring, device, file, 0, 100, kit_stream[0]),
                 GPUPOOL_E_CAPTURING);
    CHECK_RESULT(load_part(device, 0, BYTES, &ticket), GPUPOOL_E_CAPTURING);
    CHECK_EQ(ticket, 77);
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK_EQ(reads, 0);
    scene_close();
}

/* Nothing stays open, whatever became of it. */
static int next_descriptor(void) {
    int next = dup(file);
    close(next);
    return next;
}

static void no_descriptor_is_left(void) {
    gpupool_ticket ticket;
    scene_open(1);
    int next = next_descriptor();
    for (int round = 0; round < 4; round++) {
        refuse = round == 1 ? EIO : 0;
        uncache();
        gpupool_result well = refuse ? GPUPOOL_E_FILE : GPUPOOL_OK;
        CHECK_RESULT(load(0, BYTES), well);
        CHECK_RESULT(load_part(device, 0, BYTES, &ticket), GPUPOOL_OK);
        CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), well);
        CHECK_RESULT(load_part(NULL, 0, BYTES, &ticket), GPUPOOL_E_ARGUMENT);
        CHECK_RESULT(load_part(device, 0, 0, &ticket), GPUPOOL_OK);
        CHECK_EQ(next_descriptor(), next);
    }
    scene_close();
}

#if CHECK_FAKE
/* The ring is full of what stands still elsewhere: a file goes on by CUDA's own staging. */
static void a_file_beside_a_full_ring(void) {
    gpupool_span span;
    scene_open(0);
    uncache();
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &span), GPUPOOL_OK);
    CHECK_RESULT(load(5, BYTES - 5), GPUPOOL_OK);
    CHECK(kit_ring_stats(ring).slow_chunks > 0);
    expect_part(device, 5, BYTES - 5);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    scene_close();
}

/* No CUDA call of a transfer that fails makes more of it than that. */
static void cuda_calls_that_fail(void) {
    scene_open(0);
    for (int n = 1; n < 60; n++) {
        check_case("call %d fails", n);
        fake_fail_nth(n, 0);
        gpupool_result result = gpupool_upload_file(ring, device, file, 7, 700000, kit_stream[0]);
        long fired = fake_fail_fired();
        fake_fail_clear();
        kit_capture_globally();
        if (result == GPUPOOL_OK) expect_part(device, 7, 700000);
        else CHECK_RESULT(result, GPUPOOL_E_CUDA);
        CHECK_RESULT(gpupool_ring_check(ring), GPUPOOL_OK);
        if (!fired) break;
    }
    scene_close();
}
#endif

int main(void) {
    linked_pread = read_oddly;
    ARENA_TEST(parts_of_every_size);
    ARENA_TEST(by_the_cache_or_past_it);
    ARENA_TEST(tickets_and_their_order);
    ARENA_TEST(many_parts_in_one_call);
    ARENA_TEST(short_and_interrupted_reads);
    ARENA_TEST(reads_that_fail);
    ARENA_TEST(parts_that_fail);
    ARENA_TEST(files_that_are_too_short);
    ARENA_TEST(what_is_no_file);
    ARENA_TEST(what_is_refused);
    ARENA_TEST(no_descriptor_is_left);
    FAKE_TEST(a_file_beside_a_full_ring);
    FAKE_TEST(cuda_calls_that_fail);
    return check_finish();
}
