/* Whether a part of a file is in the page cache, where the system answers in each of its ways; that
   the part is read past the cache if it is not; and what a ring opens for that. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long ask(long call, ...);
static void *map(void *to, size_t bytes, int may, int how, int file, off_t at);
static int look(void *page, size_t bytes, unsigned char *in);
#define syscall ask
#define mmap map
#define mincore look
static int open_again(const char *name, int how);
static int close_again(int file);
#define open open_again
#define close close_again
static void *place(size_t bytes);
static void displace(void *memory);
#define GPUPOOL_MALLOC(bytes) place(bytes)
#define GPUPOOL_FREE(memory) displace(memory)
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef mmap
#undef open
#undef close
#include "ring_kit.h"

/* Host memory that begins so far into a page, among bytes that are nobody's. */
enum { PLACE_PAGE = 4096 };
static size_t placed_at;

static void *place(size_t bytes) {
    size_t pages = 4 + bytes / PLACE_PAGE;
    unsigned char *whole = (unsigned char *)aligned_alloc(PLACE_PAGE, pages * PLACE_PAGE);
    unsigned char *memory = whole ? whole + PLACE_PAGE + placed_at : NULL;
    if (!memory) return NULL;
    memset(whole, 0xee, pages * PLACE_PAGE);
    memcpy(whole, &bytes, sizeof bytes);
    return memory;
}

static void displace(void *memory) {
    unsigned char *at = (unsigned char *)memory;
    unsigned char *whole = at ? at - (uintptr_t)at % PLACE_PAGE - PLACE_PAGE : NULL;
    size_t bytes = 0, head = (size_t)(at - whole);
    if (!memory) return;
    memcpy(&bytes, whole, sizeof bytes);
    kit_is_byte(whole + sizeof bytes, head - sizeof bytes, 0xee);
    kit_is_byte(at + bytes, (4 + bytes / PLACE_PAGE) * PLACE_PAGE - head - bytes, 0xee);
    free(whole);
}

#if defined(__linux__)

/* What the system answers. */
static int read_error;  /* the errno of the read that must not wait; 0: it reads */
static int map_fails, look_fails, is_in;
static int mapped;      /* pages that were mapped */
static int asked;       /* reads that must not wait */
static int opened, closed, closed_in_vain;

static long ask(long call, ...) {
    CHECK_EQ(call, SYS_preadv2);
    asked++;
    errno = read_error;
    return read_error ? -1 : 1;
}

static void *map(void *to, size_t bytes, int may, int how, int file, off_t at) {
    if (file < 0) return mmap(to, bytes, may, how, file, at); /* host memory */
    CHECK_EQ(at % (off_t)GPI_PAGE_BYTES, 0);
    if (map_fails) return MAP_FAILED;
    mapped++;
    return mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Of what it answers, one bit counts. */
static int look(void *page, size_t bytes, unsigned char *in) {
    CHECK(page != MAP_FAILED && bytes == GPI_PAGE_BYTES);
    *in = is_in ? 0xff : 0xfe;
    return look_fails ? -1 : 0;
}

/* An ordinary read is right wherever the system does not tell. */
static void is_it_cached(void) {
    static const struct { int error, map_fails, look_fails, is_in, cached; } answers[] = {
        {0, 0, 0, 0, 1},          /* the byte was there */
        {EAGAIN, 0, 0, 1, 0},     /* it would have waited */
        {EOPNOTSUPP, 0, 0, 1, 1}, /* the file system does not know the flag: */
        {EOPNOTSUPP, 0, 0, 0, 0}, /* the page itself is looked at */
        {EOPNOTSUPP, 0, 1, 0, 1},
        {EOPNOTSUPP, 1, 0, 0, 1},
    };
    gpi_file file = {3, -1};
    for (size_t i = 0; i < KIT_COUNT(answers); i++) {
        check_case("answer %zu", i);
        read_error = answers[i].error;
        map_fails = answers[i].map_fails;
        look_fails = answers[i].look_fails;
        is_in = answers[i].is_in;
        CHECK_EQ(gpi_file_is_cached(&file, 3 * GPI_PAGE_BYTES + 5), answers[i].cached);
    }
    CHECK_EQ(mapped, 3);
}

/* As on a file system that takes every read past the cache. */
static int open_again(const char *name, int how) {
    CHECK(how & O_DIRECT);
    opened++;
    return open(name, how & ~O_DIRECT);
}

static int close_again(int file) {
    int result = close(file);
    closed++;
    closed_in_vain += result != 0;
    return result;
}

static void put_pattern(int file, size_t bytes) {
    unsigned char *block = (unsigned char *)malloc(bytes);
    if (!CHECK(block != NULL)) return;
    kit_pattern(block, bytes, 1);
    CHECK_EQ(write(file, block, bytes), (ssize_t)bytes);
    CHECK_EQ(fsync(file), 0);
    free(block);
}

/* By either way all bytes come, and the descriptor of the program is left alone. */
static void it_is_read_either_way(void) {
    char name[] = "gpupool-test-XXXXXX";
    const size_t bytes = 100000;
    int made = mkstemp(name);
    unsigned char *memory = (unsigned char *)aligned_alloc(GPI_PAGE_BYTES, 32 * GPI_PAGE_BYTES);
    gpi_file file;
    if (!CHECK(made >= 0 && memory)) return;
    unlink(name);
    put_pattern(made, bytes);
    CHECK_RESULT(gpi_file_open(&file, made, 0, bytes), GPUPOOL_OK);
    for (int cached = 0; cached < 2; cached++) {
        check_case("cached %d", cached);
        read_error = cached ? 0 : EAGAIN;
        memset(memory, 0, 32 * GPI_PAGE_BYTES);
        CHECK_RESULT(gpi_file_read(&file, memory, 0, bytes), GPUPOOL_OK);
        CHECK(kit_is_pattern(memory, bytes, 1, 0));
    }
    gpi_file_close(&file);
    CHECK_EQ(lseek(made, 0, SEEK_CUR), (off_t)bytes);
    close(made);
    free(memory);
}

/* For each transfer the file is opened once more, and closed once; and each chunk may be read past
   the cache, wherever in its page it begins. */
static void a_ring_reads_past_the_cache(void) {
    char name[] = "gpupool-test-XXXXXX";
    const size_t bytes = 300000, offset = 5;
    int made = mkstemp(name);
    gpupool_ring *ring = kit_ring(MIB, 0, 0);
    unsigned char *device = kit_device(bytes);
    if (!CHECK(made >= 0)) return;
    unlink(name);
    put_pattern(made, offset + bytes);
    read_error = EAGAIN;
    for (int ticketed = 0; ticketed < 2; ticketed++) {
        uint64_t before = kit_ring_stats(ring).chunks[GPUPOOL_UP];
        gpupool_transfer transfer = kit_transfer(GPUPOOL_UP, device, NULL, bytes, kit_stream[0]);
        gpupool_ticket ticket = 0;
        check_case("with a ticket: %d", ticketed);
        transfer.is_file = 1;
        transfer.file = made;
        transfer.offset = offset;
        transfer.ticket = ticketed ? &ticket : NULL;
        asked = opened = closed = closed_in_vain = 0;
        CHECK_RESULT(gpupool_ring_transfer(ring, &transfer), GPUPOOL_OK);
        if (ticketed) CHECK_RESULT(gpupool_ring_wait(ring, ticket, -1), GPUPOOL_OK);
        CHECK_EQ(asked, kit_ring_stats(ring).chunks[GPUPOOL_UP] - before);
        CHECK_EQ(opened, 1);
        CHECK_EQ(closed, 1);
        CHECK_EQ(closed_in_vain, 0);
        unsigned char *copy = kit_fetch(device, bytes);
        kit_is_pattern(copy, bytes, 1, offset);
        free(copy);
    }
    close(made);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
}

/* Whether another process would find the file locked. */
static int is_locked(int file) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        struct flock lock;
        memset(&lock, 0, sizeof lock);
        lock.l_type = F_WRLCK;
        _exit(fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
}

/* The program's lock of a file stays: closing a second descriptor of the file would drop it. */
static void a_lock_of_the_program_stays(void) {
    char name[] = "gpupool-test-XXXXXX";
    const size_t bytes = 100000;
    int made = mkstemp(name);
    unsigned char *memory = (unsigned char *)malloc(bytes);
    struct flock lock;
    gpi_file file;
    if (!CHECK(made >= 0 && memory)) return;
    unlink(name);
    put_pattern(made, bytes);
    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    lock.l_start = 99999;
    CHECK_EQ(fcntl(made, F_SETLK, &lock), 0);
    CHECK_RESULT(gpi_file_open(&file, made, 0, bytes), GPUPOOL_OK);
    CHECK_RESULT(gpi_file_read(&file, memory, 0, bytes), GPUPOOL_OK);
    gpi_file_close(&file);
    kit_is_pattern(memory, bytes, 1, 0);
    CHECK(is_locked(made));
    close(made);
    free(memory);
}

/* A chunk for which the ring has no slot is read into a block of malloc, which may begin as far
   into a page as the part of the file does: whole pages are read there, too, and nothing around
   the block is written. */
static void past_the_cache_without_a_slot(void) {
    char name[] = "gpupool-test-XXXXXX";
    const size_t bytes = 300000, offset = 16;
    int made = mkstemp(name);
    gpupool_ring *ring;
    unsigned char *device = kit_device(bytes), *copy;
    gpupool_span span;
    if (!CHECK(made >= 0)) return;
    unlink(name);
    put_pattern(made, offset + bytes + 10000);
    read_error = EAGAIN;
    placed_at = offset;
    ring = kit_ring(MIB, 0, 0);
    CHECK_RESULT(gpupool_ring_acquire_span(ring, MIB, 0, &span), GPUPOOL_OK);
    CHECK_RESULT(gpupool_upload_file(ring, device, made, offset, bytes, kit_stream[0]),
                 GPUPOOL_OK);
    CHECK(kit_ring_stats(ring).slow_chunks > 0);
    copy = kit_fetch(device, bytes);
    kit_is_pattern(copy, bytes, 1, offset);
    free(copy);
    CHECK_RESULT(gpupool_ring_cancel_span(ring, &span), GPUPOOL_OK);
    close(made);
    kit_device_free(device, bytes);
    kit_ring_close(ring);
    placed_at = 0;
}
#endif

int main(void) {
#if defined(__linux__)
    ARENA_TEST(is_it_cached);
    ARENA_TEST(it_is_read_either_way);
    ARENA_TEST(a_ring_reads_past_the_cache);
    ARENA_TEST(past_the_cache_without_a_slot);
    ARENA_TEST(a_lock_of_the_program_stays);
#else
    check_skip("what is in the page cache", "needs Linux");
#endif
    return check_finish();
}
