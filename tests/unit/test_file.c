/* Whether a part of a file is in the page cache, where the system answers in each of its ways; and
   that the part is read past the cache if it is not. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static long ask(long call, ...);
static void *map(void *to, size_t bytes, int may, int how, int file, off_t at);
static int look(void *page, size_t bytes, unsigned char *in);
#define syscall ask
#define mmap map
#define mincore look
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef mmap
#include "ring_kit.h"

#if defined(__linux__)

/* What the system answers. */
static int read_error;  /* the errno of the read that must not wait; 0: it reads */
static int map_fails, look_fails, is_in;
static int mapped;      /* pages that were mapped */

static long ask(long call, ...) {
    CHECK_EQ(call, SYS_preadv2);
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
#endif

int main(void) {
#if defined(__linux__)
    ARENA_TEST(is_it_cached);
    ARENA_TEST(it_is_read_either_way);
#else
    check_skip("what is in the page cache", "needs Linux");
#endif
    return check_finish();
}
