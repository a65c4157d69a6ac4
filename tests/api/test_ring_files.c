/* Uploads from files: cached and not, at any offset, with reads that are short, interrupted or
   refused, and from files that shrink. On the simulated GPU, and on a real one. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpupool.h"
#include "ring_kit.h"

/* pread as the header sees it; CUDA may come here, too, with files of its own. */
static struct {
    atomic_int most;        /* bytes that a read returns; 0: any number */
    atomic_int interrupts;  /* reads that a signal ends */
    atomic_long fails_from; /* an offset from which reads fail; -1: none */
    int file;
} disk = {.fails_from = -1};

static int is_of_disk(int file) {
    struct stat one, other;
    return !fstat(file, &one) && !fstat(disk.file, &other) && one.st_ino == other.st_ino &&
           one.st_dev == other.st_dev;
}

ssize_t pread(int file, void *to, size_t bytes, off_t at) {
    long fails_from = atomic_load(&disk.fails_from);
    if (!is_of_disk(file)) return (ssize_t)syscall(SYS_pread64, file, to, bytes, at);
    if (atomic_load(&disk.interrupts) > 0 && atomic_fetch_sub(&disk.interrupts, 1) > 0) {
        errno = EINTR;
        return -1;
    }
    if (fails_from >= 0 && at + (off_t)bytes > fails_from) {
        if (at >= fails_from) {
            errno = EIO;
            return -1;
        }
        bytes = (size_t)(fails_from - at);
    }
    if (atomic_load(&disk.most) && bytes > (size_t)atomic_load(&disk.most))
        bytes = (size_t)atomic_load(&disk.most);
    return (ssize_t)syscall(SYS_pread64, file, to, bytes, at);
}

#define LENGTH (2 * MIB + 777)

static gpupool_result upload(gpupool_ring *with, void *to, int file, uint64_t offset,
                             size_t bytes) {
    gpupool_file_part part = {file, offset, bytes};
    return gpupool_upload_file(with, to, &part, NULL);
}

static gpupool_ring *ring;
static unsigned char *device;

static int count_descriptors(void) {
    int count = 0;
    for (int file = 0; file < 1024; file++) count += is_of_disk(file);
    return count;
}

/* A file of pattern 3, in a folder that hardly lies in memory. */
static void open_all(void) {
    char name[] = "/var/tmp/gpupool-ring-XXXXXX";
    unsigned char *bytes = (unsigned char *)malloc(LENGTH);
    kit_fill(bytes, LENGTH, 3, 0);
    disk.file = mkstemp(name);
    if (disk.file < 0 || write(disk.file, bytes, LENGTH) != (ssize_t)LENGTH || fsync(disk.file))
        exit(1);
    unlink(name);
    free(bytes);
    ring = kit_ring(MIB, 128 * KIB, 2);
    device = kit_device(LENGTH);
}
static void close_all(void) {
    CHECK_EQ(count_descriptors(), 1);
    close(disk.file);
    kit_device_free(device, LENGTH);
    OK(gpupool_ring_destroy(ring));
    atomic_store(&disk.most, 0);
    atomic_store(&disk.interrupts, 0);
    atomic_store(&disk.fails_from, -1);
}

static void uncache(void) {
    CHECK_EQ(posix_fadvise(disk.file, 0, 0, POSIX_FADV_DONTNEED), 0);
}

static void upload_parts(void) {
    static const size_t parts[][2] = {{0, LENGTH},     {1, LENGTH - 1}, {4096, MIB},
                                      {4095, 300001},  {777, 65536},    {5000, 100},
                                      {LENGTH - 1, 1}, {LENGTH, 0}};
    for (size_t i = 0; i < KIT_COUNT(parts); i++) {
        unsigned char *copy;
        check_case("%zu bytes from %zu", parts[i][1], parts[i][0]);
        OK(upload(ring, device, disk.file, parts[i][0], parts[i][1]));
        copy = kit_fetch(device, parts[i][1]);
        kit_is(copy, parts[i][1], 3, parts[i][0]);
        free(copy);
    }
    CHECK_EQ(lseek(disk.file, 0, SEEK_CUR), LENGTH);
}

/* The first time from the page cache, and then from the disk. */
static void cached(void) {
    open_all();
    for (int i = 0; i < 4; i++) {
        if (i) uncache();
        upload_parts();
    }
    close_all();
}

static void short_reads_and_signals(void) {
    open_all();
    for (int i = 0; i < 2; i++) {
        if (i) uncache();
        atomic_store(&disk.most, 40001);
        atomic_store(&disk.interrupts, 7);
        OK(upload(ring, device, disk.file, 0, LENGTH));
        kit_device_is(device, LENGTH, 3);
        CHECK(atomic_load(&disk.interrupts) <= 0);
    }
    close_all();
}

static void read_errors(void) {
    open_all();
    for (int i = 0; i < 2; i++) {
        if (i) uncache();
        atomic_store(&disk.fails_from, (long)MIB + 5);
        KIT_REFUSES(upload(ring, device, disk.file, 0, LENGTH), GPUPOOL_E_FILE, strerror(EIO));
        OK(upload(ring, device, disk.file, 0, MIB));
        atomic_store(&disk.fails_from, -1);
        OK(upload(ring, device, disk.file, 0, LENGTH));
        kit_device_is(device, LENGTH, 3);
    }
    close_all();
}

/* A file that ends too early, at the call or later. */
static void ends_too_early(void) {
    gpupool_ticket ticket;
    gpupool_transfer what;
    cudaStream_t stream = kit_stream[0];
    open_all();
    what = kit_up(device, NULL, LENGTH, stream);
    KIT_REFUSES(upload(ring, device, disk.file, 0, LENGTH + 1), GPUPOOL_E_FILE, "ends here");
    CHECK_RESULT(upload(ring, device, disk.file, LENGTH + 1, 1), GPUPOOL_E_FILE);
    what.is_file = 1;
    what.file = disk.file;
    kit_hold(stream);
    ticket = kit_post(ring, what);
    CHECK_EQ(ftruncate(disk.file, (off_t)(300 * KIB)), 0);
    kit_let_go(stream);
    KIT_REFUSES(gpupool_ring_wait(ring, ticket, -1, NULL), GPUPOOL_E_FILE, "ends here");
    close_all();
}

static void no_files(void) {
    int pipes[2];
    open_all();
    CHECK_EQ(pipe(pipes), 0);
    CHECK_RESULT(upload(ring, device, pipes[0], 0, 100), GPUPOOL_E_FILE);
    CHECK(strstr(gpupool_last_error(), strerror(ESPIPE)) != NULL);
    CHECK_RESULT(upload(ring, device, pipes[1], 0, 100), GPUPOOL_E_FILE);
    close(pipes[0]);
    close(pipes[1]);
    CHECK_RESULT(upload(ring, device, pipes[0], 0, 100), GPUPOOL_E_FILE);
    CHECK_RESULT(upload(ring, device, -1, 0, 100), GPUPOOL_E_FILE);
    close_all();
}

/* Locks that the program holds are there after the transfer: another process sees them. */
static void keeps_locks(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    int status = -1;
    pid_t child;
    open_all();
    CHECK_EQ(fcntl(disk.file, F_SETLK, &lock), 0);
    uncache();
    OK(upload(ring, device, disk.file, 0, LENGTH));
    kit_device_is(device, LENGTH, 3);
    fflush(stdout);
    child = fork();
    if (child == 0) _exit(fcntl(disk.file, F_GETLK, &lock) || lock.l_type == F_UNLCK);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    close_all();
}

int main(void) {
    KIT_TEST(cached);
    KIT_TEST(short_reads_and_signals);
    KIT_TEST(read_errors);
    KIT_TEST(ends_too_early);
    KIT_TEST(no_files);
    KIT_TEST(keeps_locks);
    return check_finish();
}
