// build: plain -O1
// build: asan -fsanitize=address,undefined -DEVERY=9
/* Every public function is called in a full world, once for each CUDA call and each host allocation
   that it makes, with that one made to fail. */
#define _GNU_SOURCE
#define LINKED 1
#include "support/fail_malloc.h"

#include "gpupool.h"
#include "kit.h"

#if CHECK_FAKE

#include "sweep_world.h"

/* ---- calls of more than one line; each may come again after it has failed ---- */

static gpupool_result create(void) {
    gpupool_arena_config config = config_of(source, "made");
    gpupool_result result = gpupool_arena_create(&made, &config);
    CHECK_EQ(result == GPUPOOL_OK, made != NULL);
    return result;
}

static void has_made(void) {
    CHECK_RESULT(create(), GPUPOOL_OK);
    CHECK_RESULT(gpupool_allow_peer(made, 1), GPUPOOL_OK);
    kit_free(made, gpupool_alloc(made, 5 * MIB, A), A);
    kit_free(made, gpupool_alloc(made, 5 * MIB, far), far);
}

static gpupool_result destroy(void) {
    gpupool_arena *ended = made;
    made = NULL; /* whatever the result */
    return gpupool_arena_destroy(ended);
}

static gpupool_result get_default(int device) {
    gpupool_arena *found = gpupool_get_default_arena(device);
    if (device == GPUPOOL_PINNED) made = found;
    else default_devices |= 1 << device;
    return why(found);
}

static gpupool_result request(size_t bytes, cudaStream_t stream, unsigned flags) {
    return keep(MADE, kit_alloc_as(arena, bytes, 0, stream, flags), bytes, stream);
}

static void may_not_grow(void) {
    CHECK_RESULT(gpupool_set_limit(arena, kit_stats(arena).reserved.now), GPUPOOL_OK);
}

static void has_scope(void) {
    CHECK_RESULT(gpupool_begin_capture(arena, A, &made_scope), GPUPOOL_OK);
}

static gpupool_result gone(int which, gpupool_result result) {
    if (result == GPUPOOL_OK) blocks[which].at = NULL;
    return result;
}

static gpupool_result give(int which, cudaStream_t stream) {
    return gone(which, gpupool_free(arena, blocks[which].at, stream));
}

static void far_follows(void) {
    kit_follow(far, A);
}

static void a_has_ended(void) {
    CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess);
}

static gpupool_result written(gpupool_result (*write)(gpupool_arena *, FILE *)) {
    FILE *to = tmpfile();
    gpupool_result result = write(arena, to);
    CHECK(ftell(to) > 500);
    fclose(to);
    return result;
}

static gpupool_result release(void) {
    gpupool_result result = gone(OF_GRAPH, gpupool_release_capture(scope));
    if (result == GPUPOOL_OK) scope = NULL;
    return result;
}

static gpupool_result sleeps(gpupool_content content) {
    gpupool_result result = gpupool_sleep(arena, content);
    is_asleep = result == GPUPOOL_OK;
    is_discarded |= is_asleep && content == GPUPOOL_DISCARD;
    return result;
}

static void has_slept(void) {
    CHECK_RESULT(sleeps(GPUPOOL_KEEP), GPUPOOL_OK);
}

static gpupool_result wakes(void) {
    gpupool_result result = gpupool_wake(arena);
    is_asleep = result != GPUPOOL_OK;
    return result;
}

static void has_exported(void) {
    CHECK_RESULT(gpupool_export(arena, blocks[OWN].at, &exported), GPUPOOL_OK);
}

static void has_imported(void) {
    has_exported();
    CHECK_RESULT(gpupool_import(0, &exported, &imported), GPUPOOL_OK);
}

/* A call in CUDA's shape that fails sets CUDA's last error, as CUDA's own would. */
static gpupool_result shaped(cudaError_t error) {
    cudaError_t last = cudaGetLastError();
    if (error != cudaSuccess) CHECK_EQ(last, error);
    return error == cudaSuccess ? GPUPOOL_OK : gpupool_last_result();
}

static gpupool_result shaped_alloc(cudaError_t error, cudaStream_t stream, int device) {
    gpupool_result result = shaped(error);
    default_devices |= 1 << device;
    if (result != GPUPOOL_OK) return result;
    keep(MADE, shaped_at, 5 * MIB, stream);
    blocks[MADE].of = gpupool_get_default_arena(device);
    return GPUPOOL_OK;
}

static void uses_device_2(void) {
    gpupool_arena *other;
    CHECK_RESULT(get_default(2), GPUPOOL_OK);
    other = gpupool_get_default_arena(2);
    kit_free(other, gpupool_alloc(other, MIB, GPUPOOL_NO_STREAM), GPUPOOL_NO_STREAM);
}

/* Its error is CUDA's own. */
static gpupool_result resets(void) {
    cudaError_t error;
    own_calls(1);
    CHECK_EQ(cudaSetDevice(2), cudaSuccess);
    own_calls(0);
    error = gpupool_cudaDeviceReset();
    own_calls(1);
    CHECK_EQ(cudaGetLastError(), error);
    CHECK(error == cudaSuccess || fake_is_broken());
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    own_calls(0);
    return GPUPOOL_OK;
}

/* What the ring brings to LARGE are the bytes that LARGE is to have. */
static void large_is_empty(void) {
    kit_write(blocks[LARGE].at, SENT, A, 0);
}

static gpupool_result create_ring(void) {
    gpupool_ring_config config = {0, -1, MIB, 64 * KIB};
    gpupool_result result = gpupool_ring_create(&made_ring, &config);
    CHECK_EQ(result == GPUPOOL_OK, made_ring != NULL);
    return result;
}

static gpupool_result queue_on(gpupool_ring *of) {
    gpupool_transfer what = {.to = blocks[LARGE].at, .from = sent, .bytes = SENT, .stream = A};
    what.ticket = &ticket;
    return gpupool_ring_transfer(of, &what);
}

static void has_queued(void) {
    CHECK_RESULT(queue_on(ring), GPUPOOL_OK);
}

static void has_made_ring(void) {
    CHECK_RESULT(create_ring(), GPUPOOL_OK);
    CHECK_RESULT(queue_on(made_ring), GPUPOOL_OK);
    ticket = 0; /* nobody waits for it */
}

static gpupool_result destroy_ring(void) {
    gpupool_ring *ended = made_ring;
    made_ring = NULL;
    return gpupool_ring_destroy(ended);
}

static gpupool_result downloads(void) {
    gpupool_result result;
    own_calls(1);
    kit_write(blocks[LARGE].at, SENT, A, LARGE + 1);
    memset(back, 0, SENT);
    own_calls(0);
    result = gpupool_download(ring, back, blocks[LARGE].at, SENT, A);
    if (result == GPUPOOL_OK) CHECK(!memcmp(back, sent, SENT));
    return result;
}

/* A transfer that has failed does not succeed later: the next call waits for another. */
static gpupool_result waits(void) {
    gpupool_result result = gpupool_ring_wait(ring, ticket, -1, NULL);
    own_calls(1);
    ticket = 0;
    if (result != GPUPOOL_OK && !fake_is_broken()) has_queued();
    own_calls(0);
    return result;
}

/* ---- the table: a function, a name, what comes before, the sources, what the call does ---- */

enum { MAPPED = GPUPOOL_SOURCE_MAPPED, ANY = GPUPOOL_SOURCE_BYPASS }; /* the last source */

/* clang-format off */
#define ROWS(ROW) \
    ROW(last_result, any, NULL, MAPPED, (gpupool_last_result(), GPUPOOL_OK)) \
    ROW(last_error, any, NULL, MAPPED, why(gpupool_last_error())) \
    ROW(last_verdict, any, NULL, MAPPED, why(gpupool_last_verdict())) \
    ROW(result_name, any, NULL, MAPPED, why(gpupool_result_name((gpupool_result)99))) \
    ROW(arena_create, any, NULL, ANY, create()) \
    ROW(arena_create, plain, NULL, MAPPED, gpupool_arena_create(&made, NULL)) \
    ROW(arena_destroy, any, has_made, ANY, destroy()) \
    ROW(get_default_arena, other, NULL, MAPPED, get_default(1)) \
    ROW(get_default_arena, pinned, NULL, MAPPED, get_default(GPUPOOL_PINNED)) \
    ROW(alloc, cached, NULL, ANY, take(MADE, 700, A)) \
    ROW(alloc, grown, NULL, ANY, take(MADE, 12 * MIB, far)) \
    ROW(alloc, stitched, NULL, ANY, take(MADE, 7 * MIB, A)) \
    ROW(alloc, reused, NULL, MAPPED, take(MADE, 6 * MIB, B)) \
    ROW(alloc, squeezed, may_not_grow, MAPPED, take(MADE, 8 * MIB, A)) \
    ROW(alloc, waited, may_not_grow, MAPPED, take(MADE, 12 * MIB, GPUPOOL_NO_STREAM)) \
    ROW(alloc, in_vain, NULL, ANY, take(MADE, 300 * MIB, A)) \
    ROW(alloc, in_scope, has_scope, ANY, take(MADE, 3 * MIB, A)) \
    ROW(alloc_request, zeroed, NULL, ANY, request(3 * MIB, far, GPUPOOL_ZEROED)) \
    ROW(alloc_request, zeroed_now, NULL, ANY, request(MIB, GPUPOOL_NO_STREAM, GPUPOOL_ZEROED)) \
    ROW(alloc_request, own, may_not_grow, MAPPED, request(10 * MIB, A, GPUPOOL_OWN_CHUNK)) \
    ROW(alloc_request, hasty, may_not_grow, MAPPED, request(4 * MIB, D, GPUPOOL_NO_WAIT)) \
    ROW(free, small, NULL, ANY, give(SMALL, A)) \
    ROW(free, large, NULL, ANY, give(LARGE, A)) \
    ROW(free, stitched, NULL, ANY, give(STITCHED, A)) \
    ROW(free, in_scope, has_scope, ANY, give(LARGE, A)) \
    ROW(free, far, far_follows, ANY, give(FAR, far)) \
    ROW(free_in_host_function, any, a_has_ended, ANY, \
        gone(LARGE, gpupool_free_in_host_function(arena, blocks[LARGE].at))) \
    ROW(record_stream, any, NULL, ANY, gpupool_record_stream(arena, blocks[LARGE].at, far)) \
    ROW(retire_stream, any, NULL, ANY, gpupool_retire_stream(B)) \
    ROW(get_block, any, NULL, MAPPED, gpupool_get_block(arena, blocks[STITCHED].at, &told.block)) \
    ROW(walk_blocks, any, NULL, MAPPED, gpupool_walk_blocks(arena, see_part, &told.sum)) \
    ROW(trim, any, NULL, ANY, gpupool_trim(arena, 0)) \
    ROW(set_limit, any, NULL, ANY, gpupool_set_limit(arena, 20 * MIB)) \
    ROW(set_limit_text, any, NULL, MAPPED, gpupool_set_limit_text(arena, "24 MiB")) \
    ROW(get_available, any, NULL, ANY, gpupool_get_available(arena, far, &told.bytes)) \
    ROW(get_stats, any, NULL, MAPPED, gpupool_get_stats(arena, &told.stats)) \
    ROW(reset_peaks, any, NULL, MAPPED, gpupool_reset_peaks(arena)) \
    ROW(report, any, NULL, MAPPED, written(gpupool_report)) \
    ROW(write_json, any, NULL, MAPPED, written(gpupool_write_json)) \
    ROW(check, any, NULL, ANY, gpupool_check(arena)) \
    ROW(begin_capture, any, NULL, ANY, gpupool_begin_capture(arena, far, &made_scope)) \
    ROW(end_capture, any, has_scope, MAPPED, gpupool_end_capture(made_scope)) \
    ROW(release_capture, any, NULL, ANY, release()) \
    ROW(sleep, keep, NULL, MAPPED, sleeps(GPUPOOL_KEEP)) \
    ROW(sleep, discard, NULL, MAPPED, sleeps(GPUPOOL_DISCARD)) \
    ROW(wake, any, has_slept, MAPPED, wakes()) \
    ROW(allow_peer, any, NULL, ANY, gpupool_allow_peer(arena, 2)) \
    ROW(export, any, NULL, MAPPED, gpupool_export(arena, blocks[OWN].at, &exported)) \
    ROW(import, any, has_exported, MAPPED, gpupool_import(0, &exported, &imported)) \
    ROW(import_close, any, has_imported, MAPPED, gpupool_import_close(&imported)) \
    ROW(cudaMalloc, any, NULL, MAPPED, \
        shaped_alloc(gpupool_cudaMalloc(&shaped_at, 5 * MIB), A, 0)) \
    ROW(cudaMallocAsync, any, NULL, MAPPED, \
        shaped_alloc(gpupool_cudaMallocAsync(&shaped_at, 5 * MIB, far), far, 1)) \
    ROW(cudaFree, any, NULL, MAPPED, gone(SHAPED, shaped(gpupool_cudaFree(blocks[SHAPED].at)))) \
    ROW(cudaFreeAsync, any, NULL, MAPPED, \
        gone(SHAPED, shaped(gpupool_cudaFreeAsync(blocks[SHAPED].at, A)))) \
    ROW(cudaDeviceReset, any, uses_device_2, MAPPED, resets()) \
    ROW(ring_create, any, NULL, MAPPED, create_ring()) \
    ROW(ring_destroy, any, has_made_ring, MAPPED, destroy_ring()) \
    ROW(upload, any, large_is_empty, MAPPED, \
        gpupool_upload(ring, blocks[LARGE].at, sent, SENT, A)) \
    ROW(upload, small, NULL, MAPPED, gpupool_upload(ring, blocks[LARGE].at, sent, 100, A)) \
    ROW(download, any, NULL, MAPPED, downloads()) \
    ROW(upload_file, any, large_is_empty, MAPPED, \
        gpupool_upload_file(ring, blocks[LARGE].at, &sent_file, A)) \
    ROW(ring_transfer, any, large_is_empty, MAPPED, queue_on(ring)) \
    ROW(ring_wait, any, has_queued, MAPPED, waits()) \
    ROW(ring_get_stats, any, NULL, MAPPED, gpupool_ring_get_stats(ring, &told.ring))
/* clang-format on */

#define ROW_FUNCTION(function, name, before, sources, call) \
    static gpupool_result row_##function##_##name(void) { \
        return call; \
    }
ROWS(ROW_FUNCTION)

typedef struct row {
    const char *function, *name;
    gpupool_result (*call)(void);
    void (*before)(void); /* or NULL */
    int last_source;
} row;
#define ROW_ENTRY(function, name, before, sources, call) \
    {"gpupool_" #function, #name, row_##function##_##name, before, sources},
static const row rows[] = {ROWS(ROW_ENTRY)};

static int has_row(const char *function) {
    for (size_t i = 0; i < KIT_COUNT(rows); i++)
        if (!strcmp(rows[i].function, function)) return 1;
    return 0;
}

static void every_function(void) {
    each_declared(has_row);
}

/* ---- what fails, and what must hold then ---- */

typedef enum fault { RESOURCE, BROKEN, HOST, FAULTS } fault;
static const char *const fault_names[] = {"resource call", "other call", "host allocation"};

static void set_fault(fault kind, long n) {
    if (kind == RESOURCE) fake_fail_resource(n);
    if (kind == BROKEN) fake_break(n);
    if (kind == HOST) fail_malloc_nth(n, 0);
    fake_fail_except("cuThreadExchangeStreamCaptureMode," /* these need no context */
                     "cuDeviceGetAttribute,cuMemGetAllocationGranularity");
}

static void clear_faults(void) {
    fake_fail_clear();
    fail_malloc_nth(0, 0);
}

/* The message names CUDA's call and error, or the verdict, or the host. A request that may not wait
   cannot tell a refused wait from work under way. */
static void says_why(const row *r, gpupool_result result, fault kind) {
    const char *said = gpupool_last_error();
    int is_verdict =
        result == GPUPOOL_E_OUT_OF_MEMORY && !strcmp(said, gpupool_last_verdict()->sentence) &&
        (kind == RESOURCE || r->call == row_alloc_in_vain || r->call == row_alloc_request_hasty);
    int is_cudas = strstr(said, "cu") && (strstr(said, "CUDA_ERROR") || strstr(said, "cudaError"));
    CHECK_EQ(gpupool_last_result(), result);
    if (kind == HOST) CHECK_RESULT(result, GPUPOOL_E_HOST_MEMORY);
    if (kind == BROKEN && !is_verdict) CHECK_RESULT(result, GPUPOOL_E_CUDA);
    if (kind == HOST ? !strstr(said, "the host has no memory") : !is_verdict && !is_cudas)
        check_fail(__FILE__, __LINE__, "no cause in: %s", said);
}

/* Device, CUDA's last error and the mode of capture are the program's. */
static void leaves_the_thread(void) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    int device = -1;
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
    CHECK_EQ(device, 0);
    CHECK_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    CHECK_EQ(mode, cudaStreamCaptureModeGlobal);
}

/* Requests for memory of CUDA's fail; once the arena is broken, its first cause stays. */
static void stays_broken(const row *r) {
    char cause[600] = "";
    gpupool_set_limit(arena, 0);
    for (int i = 0; i < 3 && source != GPUPOOL_SOURCE_CUSTOM && !is_asleep; i++) {
        CHECK(!gpupool_alloc(arena, 40 * MIB, i ? A : D));
        says_why(r, gpupool_last_result(), BROKEN);
        if (strstr(cause, "is broken") && strcmp(cause, gpupool_last_error()))
            check_fail(__FILE__, __LINE__, "%s; and now: %s", cause, gpupool_last_error());
        snprintf(cause, sizeof cause, "%s", gpupool_last_error());
    }
}

/* Makes a row's call with the n-th call of a kind failing. Returns whether one did. */
static int one_fault(const row *r, fault kind, long n) {
    gpupool_result result, expected;
    sight before;
    int failed;
    check_case("%s %s, source %d, %s %ld", r->function, r->name, (int)source, fault_names[kind], n);
    expected = r->call == row_alloc_in_vain ? GPUPOOL_E_OUT_OF_MEMORY : GPUPOOL_OK;
    own_calls(1);
    build();
    if (r->before) r->before();
    see(arena, &before);
    set_fault(kind, n);
    own_calls(0);
    result = r->call();
    own_calls(1);
    failed = fake_fail_fired() + fail_malloc_fired > 0;
    is_whole = !failed || kind != BROKEN;
    leaves_the_thread();
    if (!failed) CHECK_RESULT(result, expected);
    else if (result != GPUPOOL_OK) says_why(r, result, kind);
    own_calls(0);
    if (!is_whole) stays_broken(r);
    if (is_whole || n % 2) clear_faults(); /* a broken arena stays so */
    if (is_whole && result != expected) {
        is_as_before(&before);
        CHECK_RESULT(r->call(), expected);
    }
    end();
    clear_faults();
    return failed;
}

static void each_fault(void) {
    long faults = 0;
    for (const row *r = rows; r < rows + KIT_COUNT(rows); r++)
        for (int s = MAPPED; s <= r->last_source; s++)
            for (int kind = RESOURCE; kind < FAULTS; kind++) {
                source = (gpupool_source)s;
                for (long n = 1; one_fault(r, (fault)kind, n); n += 1 + n / 20) faults++;
            }
    printf("%ld faults\n", faults);
    CHECK(faults > 1500);
}

int main(void) {
    fill_file();
    TEST(every_function);
    TEST(each_fault);
    return check_finish();
}

#else
int main(void) {
    check_skip("sweep", "needs fakecuda's controls");
    return check_finish();
}
#endif
