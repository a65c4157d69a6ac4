// build: plain -O1
// build: asan -fsanitize=address,undefined
/* Every public function is called in a full world, once for each CUDA call and each host allocation
   that it makes, with that one made to fail; and then with every kind of wrong argument. */
#define _GNU_SOURCE
#define LINKED 1
#include "support/fail_malloc.h"

#include "gpupool.h"
#include "kit.h"

#if CHECK_FAKE

#include "sweep_world.h"

/* ---- what the functions do; a row's call comes again when it has failed ---- */

static gpupool_result words(void) {
    CHECK(gpupool_last_error() && gpupool_last_verdict() && gpupool_result_name(GPUPOOL_OK));
    return gpupool_last_result() < GPUPOOL_E_CUDA ? GPUPOOL_OK : gpupool_last_result();
}
static gpupool_result create(void) {
    gpupool_arena_config config = config_of(source, "made");
    gpupool_result result = gpupool_arena_create(&made, &config);
    CHECK_EQ(result == GPUPOOL_OK, made != NULL);
    return result;
}
static gpupool_result create_without_config(void) {
    return gpupool_arena_create(&made, NULL);
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
static gpupool_result get_default(void) {
    default_devices |= 2;
    return gpupool_get_default_arena(1) ? GPUPOOL_OK : gpupool_last_result();
}
static gpupool_result get_default_pinned(void) {
    made = gpupool_get_default_arena(GPUPOOL_PINNED);
    return made ? GPUPOOL_OK : gpupool_last_result();
}

/* ---- allocate and free ---- */

static gpupool_result request(size_t bytes, cudaStream_t stream, unsigned flags) {
    return keep(MADE, kit_alloc_as(arena, bytes, 0, stream, flags), bytes, stream);
}
static gpupool_result alloc_cached(void) { return take(MADE, 700, A); }
static gpupool_result alloc_grown(void) { return take(MADE, 12 * MIB, far); }
static gpupool_result alloc_stitched(void) { return take(MADE, 7 * MIB, A); }
static gpupool_result alloc_reused(void) { return take(MADE, 6 * MIB, B); }
static gpupool_result alloc_squeezed(void) { return take(MADE, 8 * MIB, A); }
static gpupool_result alloc_waited(void) { return take(MADE, 12 * MIB, GPUPOOL_NO_STREAM); }
static gpupool_result alloc_in_vain(void) { return take(MADE, 300 * MIB, A); }
static gpupool_result alloc_in_scope(void) { return take(MADE, 3 * MIB, A); }
static gpupool_result zeroed(void) { return request(3 * MIB, far, GPUPOOL_ZEROED); }
static gpupool_result zeroed_now(void) { return request(MIB, GPUPOOL_NO_STREAM, GPUPOOL_ZEROED); }
static gpupool_result own_chunk(void) { return request(10 * MIB, A, GPUPOOL_OWN_CHUNK); }
static gpupool_result without_wait(void) { return request(4 * MIB, D, GPUPOOL_NO_WAIT); }

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
static gpupool_result free_small(void) { return give(SMALL, A); }
static gpupool_result free_large(void) { return give(LARGE, A); }
static gpupool_result free_stitched(void) { return give(STITCHED, A); }
static gpupool_result free_in_scope(void) { return give(LARGE, A); }
static gpupool_result free_far(void) { return give(FAR, far); }
static void far_follows(void) { kit_follow(far, A); }
static gpupool_result free_in_function(void) {
    return gone(LARGE, gpupool_free_in_host_function(arena, blocks[LARGE].at));
}
static void a_has_ended(void) { CHECK_EQ(cudaStreamSynchronize(A), cudaSuccess); }
static gpupool_result record(void) { return gpupool_record_stream(arena, blocks[LARGE].at, far); }
static gpupool_result retire(void) { return gpupool_retire_stream(B); }
static gpupool_result get_block(void) {
    gpupool_block block;
    return gpupool_get_block(arena, blocks[STITCHED].at, &block);
}

/* ---- figures and reports ---- */

static gpupool_result trim(void) { return gpupool_trim(arena, 0); }
static gpupool_result set_limit(void) { return gpupool_set_limit(arena, 20 * MIB); }
static gpupool_result set_limit_text(void) { return gpupool_set_limit_text(arena, "24 MiB"); }
static gpupool_result get_available(void) {
    size_t bytes;
    return gpupool_get_available(arena, far, &bytes);
}
static gpupool_result get_stats(void) {
    gpupool_stats stats;
    return gpupool_get_stats(arena, &stats);
}
static gpupool_result reset_peaks(void) { return gpupool_reset_peaks(arena); }
static gpupool_result walk(void) {
    uint64_t sum = 0;
    return gpupool_walk_blocks(arena, see_part, &sum);
}
static gpupool_result written(gpupool_result (*write)(gpupool_arena *, FILE *)) {
    FILE *to = tmpfile();
    gpupool_result result = write(arena, to);
    CHECK(ftell(to) > 500);
    fclose(to);
    return result;
}
static gpupool_result report(void) { return written(gpupool_report); }
static gpupool_result write_json(void) { return written(gpupool_write_json); }
static gpupool_result check(void) { return gpupool_check(arena); }

/* ---- graphs, sleep, others ---- */

static gpupool_result begin_capture(void) { return gpupool_begin_capture(arena, far, &made_scope); }
static gpupool_result end_capture(void) { return gpupool_end_capture(made_scope); }
static gpupool_result release_capture(void) {
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
static gpupool_result sleep_keep(void) { return sleeps(GPUPOOL_KEEP); }
static gpupool_result sleep_discard(void) { return sleeps(GPUPOOL_DISCARD); }
static gpupool_result wake(void) {
    gpupool_result result = gpupool_wake(arena);
    is_asleep = result != GPUPOOL_OK;
    return result;
}
static void has_slept(void) { CHECK_RESULT(sleep_keep(), GPUPOOL_OK); }
static void has_discarded(void) { CHECK_RESULT(sleep_discard(), GPUPOOL_OK); }
static gpupool_result allow_peer(void) { return gpupool_allow_peer(arena, 2); }
static gpupool_result exports(void) {
    return gpupool_export(arena, blocks[OWN].at, &exported);
}
static void has_exported(void) { CHECK_RESULT(exports(), GPUPOOL_OK); }
static gpupool_result imports(void) {
    gpupool_result result = gpupool_import(0, &exported, &imported);
    CHECK_EQ(result == GPUPOOL_OK, imported.memory != NULL);
    return result;
}
static void has_imported(void) {
    has_exported();
    CHECK_RESULT(imports(), GPUPOOL_OK);
}
static gpupool_result import_close(void) { return gpupool_import_close(&imported); }

/* ---- CUDA's shapes ---- */

/* A call in CUDA's shape leaves CUDA's last error as CUDA's own would. */
static gpupool_result shaped(cudaError_t error) {
    cudaError_t last = cudaGetLastError();
    if (error != cudaSuccess) CHECK_EQ(last, error);
    return error == cudaSuccess ? GPUPOOL_OK : gpupool_last_result();
}
static gpupool_result shaped_alloc(cudaError_t error, void *at, cudaStream_t stream, int device) {
    gpupool_result result = shaped(error);
    default_devices |= 1 << device;
    if (result != GPUPOOL_OK) return result;
    keep(MADE, at, 5 * MIB, stream);
    blocks[MADE].of = gpupool_get_default_arena(device);
    return GPUPOOL_OK;
}
static gpupool_result cuda_malloc(void) {
    void *at = NULL;
    cudaError_t error = gpupool_cudaMalloc(&at, 5 * MIB);
    return shaped_alloc(error, at, A, 0);
}
static gpupool_result cuda_malloc_async(void) {
    void *at = NULL;
    cudaError_t error = gpupool_cudaMallocAsync(&at, 5 * MIB, far);
    return shaped_alloc(error, at, far, 1);
}
static gpupool_result cuda_free(void) {
    return gone(SHAPED, shaped(gpupool_cudaFree(blocks[SHAPED].at)));
}
static gpupool_result cuda_free_async(void) {
    return gone(SHAPED, shaped(gpupool_cudaFreeAsync(blocks[SHAPED].at, A)));
}
static void use_device_2(void) {
    void *at;
    CHECK_EQ(cudaSetDevice(2), cudaSuccess);
    CHECK_EQ(gpupool_cudaMalloc(&at, MIB), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    blocks[MADE].at = at; /* ends with its arena */
    blocks[MADE].of = gpupool_get_default_arena(2);
    default_devices |= 4;
}
static gpupool_result device_reset(void) {
    gpupool_block block;
    cudaError_t error;
    own_calls(1);
    CHECK_EQ(cudaSetDevice(2), cudaSuccess);
    own_calls(0);
    error = gpupool_cudaDeviceReset();
    own_calls(1);
    CHECK_EQ(cudaGetLastError(), error);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    own_calls(0);
    if (gpupool_get_block(blocks[MADE].of, blocks[MADE].at, &block) != GPUPOOL_OK)
        blocks[MADE].at = NULL;
    CHECK(error == cudaSuccess || fake_is_broken()); /* it is CUDA's own error */
    return GPUPOOL_OK;
}

/* ---- the ring: what it brings to LARGE are the bytes that LARGE is to have ---- */

static void large_is_empty(void) { kit_write(blocks[LARGE].at, SENT, A, 0); }
static void large_is_full(void) {
    kit_write(blocks[LARGE].at, SENT, A, LARGE + 1);
    memset(got, 0, SENT);
}
static gpupool_result ring_create(void) {
    gpupool_ring_config config = {0, MIB, 64 * KIB, -1};
    gpupool_result result = gpupool_ring_create(&made_ring, &config);
    CHECK_EQ(result == GPUPOOL_OK, made_ring != NULL);
    return result;
}
static gpupool_result queue_on(gpupool_ring *of, gpupool_ticket *to) {
    gpupool_transfer what = {.to = blocks[LARGE].at, .from = sent, .bytes = SENT, .stream = A};
    what.ticket = to;
    return gpupool_ring_transfer(of, &what);
}
static void has_made_ring(void) {
    gpupool_ticket forgotten;
    CHECK_RESULT(ring_create(), GPUPOOL_OK);
    CHECK_RESULT(queue_on(made_ring, &forgotten), GPUPOOL_OK);
}
static gpupool_result ring_destroy(void) {
    gpupool_ring *ended = made_ring;
    made_ring = NULL;
    return gpupool_ring_destroy(ended);
}
static gpupool_result upload(void) { return gpupool_upload(ring, blocks[LARGE].at, sent, SENT, A); }
static gpupool_result upload_little(void) {
    return gpupool_upload(ring, blocks[LARGE].at, sent, 100, A);
}
static gpupool_result download(void) {
    gpupool_result result = gpupool_download(ring, got, blocks[LARGE].at, SENT, A);
    if (result == GPUPOOL_OK) CHECK(!memcmp(got, sent, SENT));
    return result;
}
static gpupool_result upload_file(void) {
    gpupool_file_part part = {file, 0, SENT};
    return gpupool_upload_file(ring, blocks[LARGE].at, &part, A);
}
static gpupool_result transfer(void) { return queue_on(ring, &ticket); }
static void has_queued(void) { CHECK_RESULT(transfer(), GPUPOOL_OK); }
/* A transfer that has failed does not succeed later: the next call waits for another. */
static gpupool_result wait(void) {
    gpupool_result result = gpupool_ring_wait(ring, ticket, -1, NULL);
    own_calls(1);
    ticket = 0;
    if (result != GPUPOOL_OK && !fake_is_broken()) has_queued();
    own_calls(0);
    return result;
}
static gpupool_result ring_stats(void) {
    gpupool_ring_stats stats;
    return gpupool_ring_get_stats(ring, &stats);
}

/* ---- the table ---- */

enum { ANY = 1 }; /* of sources; others: MAPPED */
typedef struct row {
    const char *name;
    gpupool_result (*call)(void);
    void (*prepare)(void); /* or NULL */
    int sources;
    gpupool_result expected; /* when nothing fails */
} row;

static const row rows[] = {
    {"gpupool_last_result", words, NULL, 0, GPUPOOL_OK},
    {"gpupool_last_error", words, NULL, 0, GPUPOOL_OK},
    {"gpupool_last_verdict", words, NULL, 0, GPUPOOL_OK},
    {"gpupool_result_name", words, NULL, 0, GPUPOOL_OK},
    {"gpupool_arena_create", create, NULL, ANY, GPUPOOL_OK},
    {"gpupool_arena_create", create_without_config, NULL, 0, GPUPOOL_OK},
    {"gpupool_arena_destroy", destroy, has_made, ANY, GPUPOOL_OK},
    {"gpupool_get_default_arena", get_default, NULL, 0, GPUPOOL_OK},
    {"gpupool_get_default_arena", get_default_pinned, NULL, 0, GPUPOOL_OK},
    {"gpupool_alloc", alloc_cached, NULL, ANY, GPUPOOL_OK},
    {"gpupool_alloc", alloc_grown, NULL, ANY, GPUPOOL_OK},
    {"gpupool_alloc", alloc_stitched, NULL, ANY, GPUPOOL_OK},
    {"gpupool_alloc", alloc_reused, NULL, 0, GPUPOOL_OK},
    {"gpupool_alloc", alloc_squeezed, may_not_grow, 0, GPUPOOL_OK},
    {"gpupool_alloc", alloc_waited, may_not_grow, 0, GPUPOOL_OK},
    {"gpupool_alloc", alloc_in_vain, NULL, ANY, GPUPOOL_E_OUT_OF_MEMORY},
    {"gpupool_alloc", alloc_in_scope, has_scope, ANY, GPUPOOL_OK},
    {"gpupool_alloc_request", zeroed, NULL, ANY, GPUPOOL_OK},
    {"gpupool_alloc_request", zeroed_now, NULL, ANY, GPUPOOL_OK},
    {"gpupool_alloc_request", own_chunk, may_not_grow, 0, GPUPOOL_OK},
    {"gpupool_alloc_request", without_wait, may_not_grow, 0, GPUPOOL_OK},
    {"gpupool_free", free_small, NULL, ANY, GPUPOOL_OK},
    {"gpupool_free", free_large, NULL, ANY, GPUPOOL_OK},
    {"gpupool_free", free_stitched, NULL, ANY, GPUPOOL_OK},
    {"gpupool_free", free_in_scope, has_scope, ANY, GPUPOOL_OK},
    {"gpupool_free", free_far, far_follows, ANY, GPUPOOL_OK},
    {"gpupool_free_in_host_function", free_in_function, a_has_ended, ANY, GPUPOOL_OK},
    {"gpupool_record_stream", record, NULL, ANY, GPUPOOL_OK},
    {"gpupool_retire_stream", retire, NULL, ANY, GPUPOOL_OK},
    {"gpupool_get_block", get_block, NULL, 0, GPUPOOL_OK},
    {"gpupool_trim", trim, NULL, ANY, GPUPOOL_OK},
    {"gpupool_set_limit", set_limit, NULL, ANY, GPUPOOL_OK},
    {"gpupool_set_limit_text", set_limit_text, NULL, 0, GPUPOOL_OK},
    {"gpupool_get_available", get_available, NULL, ANY, GPUPOOL_OK},
    {"gpupool_get_stats", get_stats, NULL, 0, GPUPOOL_OK},
    {"gpupool_reset_peaks", reset_peaks, NULL, 0, GPUPOOL_OK},
    {"gpupool_walk_blocks", walk, NULL, 0, GPUPOOL_OK},
    {"gpupool_report", report, NULL, 0, GPUPOOL_OK},
    {"gpupool_write_json", write_json, NULL, 0, GPUPOOL_OK},
    {"gpupool_check", check, NULL, 0, GPUPOOL_OK},
    {"gpupool_begin_capture", begin_capture, NULL, ANY, GPUPOOL_OK},
    {"gpupool_end_capture", end_capture, has_scope, 0, GPUPOOL_OK},
    {"gpupool_release_capture", release_capture, NULL, ANY, GPUPOOL_OK},
    {"gpupool_sleep", sleep_keep, NULL, 0, GPUPOOL_OK},
    {"gpupool_sleep", sleep_discard, NULL, 0, GPUPOOL_OK},
    {"gpupool_wake", wake, has_slept, 0, GPUPOOL_OK},
    {"gpupool_wake", wake, has_discarded, 0, GPUPOOL_OK},
    {"gpupool_allow_peer", allow_peer, NULL, ANY, GPUPOOL_OK},
    {"gpupool_export", exports, NULL, 0, GPUPOOL_OK},
    {"gpupool_import", imports, has_exported, 0, GPUPOOL_OK},
    {"gpupool_import_close", import_close, has_imported, 0, GPUPOOL_OK},
    {"gpupool_cudaMalloc", cuda_malloc, NULL, 0, GPUPOOL_OK},
    {"gpupool_cudaFree", cuda_free, NULL, 0, GPUPOOL_OK},
    {"gpupool_cudaMallocAsync", cuda_malloc_async, NULL, 0, GPUPOOL_OK},
    {"gpupool_cudaFreeAsync", cuda_free_async, NULL, 0, GPUPOOL_OK},
    {"gpupool_cudaDeviceReset", device_reset, use_device_2, 0, GPUPOOL_OK},
    {"gpupool_ring_create", ring_create, NULL, 0, GPUPOOL_OK},
    {"gpupool_ring_destroy", ring_destroy, has_made_ring, 0, GPUPOOL_OK},
    {"gpupool_upload", upload, large_is_empty, 0, GPUPOOL_OK},
    {"gpupool_upload", upload_little, NULL, 0, GPUPOOL_OK},
    {"gpupool_download", download, large_is_full, 0, GPUPOOL_OK},
    {"gpupool_upload_file", upload_file, large_is_empty, 0, GPUPOOL_OK},
    {"gpupool_ring_transfer", transfer, large_is_empty, 0, GPUPOOL_OK},
    {"gpupool_ring_wait", wait, has_queued, 0, GPUPOOL_OK},
    {"gpupool_ring_get_stats", ring_stats, NULL, 0, GPUPOOL_OK},
};

/* ---- what fails, and what must hold then ---- */

typedef enum fault { RESOURCE, BROKEN, HOST } fault;
static const char *const fault_names[] = {"resource call", "other call", "host allocation"};

static void set_fault(fault kind, long n) {
    if (kind == RESOURCE) fake_fail_resource(n);
    if (kind == BROKEN) fake_break(n);
    if (kind == HOST) fail_malloc_nth(n, 0);
    fake_fail_except("cuThreadExchangeStreamCaptureMode," /* these need no context */
                     "cuDeviceGetAttribute,cuMemGetAllocationGranularity");
}
static long fired(void) { return fake_fail_fired() + fail_malloc_fired; }
static void clear_faults(void) {
    fake_fail_clear();
    fail_malloc_nth(0, 0);
}

/* The message names CUDA's call and error, the verdict, or the host. */
static void says_why(const row *r, gpupool_result result, fault kind) {
    const char *said = gpupool_last_error();
    int is_verdict = !strcmp(said, gpupool_last_verdict()->sentence);
    int is_cudas = strstr(said, "cu") && (strstr(said, "CUDA_ERROR") || strstr(said, "cudaError"));
    CHECK_EQ(gpupool_last_result(), result);
    if (kind == HOST) CHECK_RESULT(result, GPUPOOL_E_HOST_MEMORY);
    if (kind != HOST && result == GPUPOOL_E_OUT_OF_MEMORY && is_verdict)
        if (kind == RESOURCE || result == r->expected || r->call == without_wait) return;
    if (kind == BROKEN) CHECK_RESULT(result, GPUPOOL_E_CUDA);
    if (kind == HOST ? !strstr(said, "the host has no memory") : !is_cudas)
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

/* Requests for memory of CUDA's fail, and the first cause stays. */
static void stays_broken(const row *r) {
    char cause[600] = "";
    gpupool_set_limit(arena, 0);
    for (int i = 0; i < 2 && source != GPUPOOL_SOURCE_CUSTOM && !is_asleep; i++) {
        CHECK(!gpupool_alloc(arena, 40 * MIB, i ? A : D));
        says_why(r, gpupool_last_result(), BROKEN);
        if (i) CHECK(!strcmp(cause, gpupool_last_error()));
        snprintf(cause, sizeof cause, "%s", gpupool_last_error());
    }
}

/* Returns whether something failed. */
static int one_fault(const row *r, fault kind, long n) {
    sight before;
    gpupool_result result;
    int failed;
    check_case("%s, source %d, %s %ld", r->name, (int)source, fault_names[kind], n);
    build();
    own_calls(1);
    if (r->prepare) r->prepare();
    see(arena, &before);
    set_fault(kind, n);
    own_calls(0);
    result = r->call();
    failed = fired() > 0;
    own_calls(1);
    leaves_the_thread();
    if (!failed) CHECK_RESULT(result, r->expected);
    else if (result != GPUPOOL_OK) says_why(r, result, kind);
    own_calls(0);
    if (failed && kind == BROKEN) {
        stays_broken(r);
        if (n % 2) clear_faults(); /* there is no way back for all that */
        end(0);
    } else {
        clear_faults();
        if (failed && result != r->expected) {
            is_as_before(&before, arena);
            CHECK_RESULT(r->call(), r->expected);
        }
        end(1);
    }
    clear_faults();
    return failed;
}

static void each_fault(void) {
    long faults = 0;
    for (size_t i = 0; i < KIT_COUNT(rows); i++)
        for (int s = 0; s <= (rows[i].sources == ANY ? GPUPOOL_SOURCE_BYPASS : 1); s++)
            for (int kind = RESOURCE; s && kind <= HOST; kind++) {
                long n = 1;
                source = (gpupool_source)s;
                while (one_fault(&rows[i], (fault)kind, n)) {
                    n += 1 + n / 20;
                    faults++;
                }
            }
    printf("%ld faults\n", faults);
    CHECK(faults > 500);
}

int main(void) {
    FILE *from = tmpfile();
    memset(sent, LARGE + 1, SENT);
    fwrite(sent, 1, SENT, from);
    fflush(from);
    file = fileno(from);
    TEST(each_fault);
    fclose(from);
    return check_finish();
}

#else
int main(void) {
    check_skip("sweep", "needs fakecuda's controls");
    return check_finish();
}
#endif
