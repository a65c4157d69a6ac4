/* Wrong calls: every public function with every kind of wrong argument. The result says of which
   kind the mistake is, the message names argument and rule, and nothing has changed. */
#define _GNU_SOURCE
#define LINKED 1
#include "support/fail_malloc.h"

#include "gpupool.h"
#include "kit.h"

#if CHECK_FAKE

#include "sweep_world.h"

static sight before_all;
static gpupool_arena *destroyed, *device_arena; /* the second has memory of cudaMalloc's */
static cudaStream_t foreign;                    /* of a device that is no peer */

static char called[1 << 16]; /* all calls so far */

static int was_called(const char *function) {
    static const char *const without_arguments[] = {"gpupool_last_result", "gpupool_last_error",
                                                    "gpupool_last_verdict", "gpupool_result_name",
                                                    "gpupool_cudaDeviceReset"};
    char call[64];
    for (size_t i = 0; i < KIT_COUNT(without_arguments); i++)
        if (!strcmp(function, without_arguments[i])) return 1;
    snprintf(call, sizeof call, "%s(", function);
    return strstr(called, call) != NULL;
}

/* A call is refused, with words that name argument and rule; nothing has changed. */
static void refused(const char *call, gpupool_result result, gpupool_result expected,
                    const char *words) {
    check_case("%s", call);
    strncat(called, call, sizeof called - strlen(called) - 1);
    CHECK_RESULT(result, expected);
    CHECK_RESULT(gpupool_last_result(), expected);
    if (!strstr(gpupool_last_error(), words))
        check_fail(__FILE__, __LINE__, "not \"%s\" but: %s", words, gpupool_last_error());
    is_as_before(&before_all);
}
#define REFUSES(call, result, words) refused(#call, call, GPUPOOL_E_##result, words)
#define WRONG(call, words) REFUSES(call, ARGUMENT, words)

/* All functions of an arena, with one that is none. */
static void of_no_arena(gpupool_arena *none, const char *words) {
    gpupool_request asked = {1, 0, A, 0, NULL};
    void *block = blocks[LARGE].at;
    WRONG(gpupool_arena_destroy(none), words);
    WRONG(why(gpupool_alloc(none, 1, A)), words);
    WRONG(why(gpupool_alloc_request(none, &asked)), words);
    WRONG(gpupool_free(none, block, A), words);
    WRONG(gpupool_free(none, NULL, A), words);
    WRONG(gpupool_free_in_host_function(none, block), words);
    WRONG(gpupool_record_stream(none, block, A), words);
    WRONG(gpupool_get_block(none, block, &told.block), words);
    WRONG(gpupool_trim(none, 0), words);
    WRONG(gpupool_get_available(none, A, &told.bytes), words);
    WRONG(gpupool_set_limit(none, 0), words);
    WRONG(gpupool_set_limit_text(none, "1G"), words);
    WRONG(gpupool_get_stats(none, &told.stats), words);
    WRONG(gpupool_reset_peaks(none), words);
    WRONG(gpupool_walk_blocks(none, see_part, &told.sum), words);
    WRONG(gpupool_report(none, stdout), words);
    WRONG(gpupool_write_json(none, stdout), words);
    WRONG(gpupool_check(none), words);
    WRONG(gpupool_begin_capture(none, A, &made_scope), words);
    WRONG(gpupool_sleep(none, GPUPOOL_KEEP), words);
    WRONG(gpupool_wake(none), words);
    WRONG(gpupool_allow_peer(none, 1), words);
    WRONG(gpupool_export(none, block, &exported), words);
}

static gpupool_result create_as(gpupool_arena_config config) {
    gpupool_result result = gpupool_arena_create(&made, &config);
    CHECK(!made);
    return result;
}
#define CONFIG(...) create_as((gpupool_arena_config){__VA_ARGS__})

static void of_create(void) {
    WRONG(gpupool_arena_create(NULL, NULL), "arena: it is NULL");
    WRONG(CONFIG(.device = -1), "device: -1 is not in 0 to 2");
    WRONG(CONFIG(.device = 3), "device: 3 is not in 0 to 2");
    WRONG(CONFIG(.source = (gpupool_source)7), "config.source: there is none such");
    WRONG(CONFIG(.source = (gpupool_source)-1), "config.source: there is none such");
    WRONG(CONFIG(.source = GPUPOOL_SOURCE_CUSTOM), "CUSTOM needs both chunk_alloc and chunk_free");
    WRONG(CONFIG(.share = 4), "config.share: it has an unknown bit");
    WRONG(CONFIG(.share = 1, .source = GPUPOOL_SOURCE_DEVICE), "only MAPPED memory is shared");
    WRONG(CONFIG(.chunk_bytes = SIZE_MAX), "config.chunk_bytes: more than 2^46");
    WRONG(CONFIG(.limit_bytes = (size_t)-5), "18446744073709551611");
    WRONG(CONFIG(.limit_bytes = ((size_t)1 << 46) + 1), "more than 2^46");
    WRONG(why(gpupool_get_default_arena(-1)), "device: -1 is neither a device nor");
    WRONG(why(gpupool_get_default_arena(3)), "device: 3 is not in 0 to 2");
    WRONG(why(gpupool_get_default_arena(1000)), "device: 1000 is neither");
    REFUSES(gpupool_arena_destroy(arena), IN_USE, "blocks are live, and 1 scopes");
}

static gpupool_result ask(size_t bytes, size_t alignment, cudaStream_t stream, unsigned flags) {
    return why(kit_alloc_as(arena, bytes, alignment, stream, flags));
}

static void of_requests(void) {
    WRONG(why(gpupool_alloc(arena, 0, A)), "bytes: 0 is not in 1 to 2^46");
    WRONG(why(gpupool_alloc(arena, ((size_t)1 << 46) + 1, A)), "is not in 1 to 2^46");
    WRONG(why(gpupool_alloc(arena, SIZE_MAX, A)), "is not in 1 to 2^46");
    WRONG(why(gpupool_alloc(arena, 1, foreign)), "belongs to another device or context");
    WRONG(why(gpupool_alloc_request(arena, NULL)), "request: it is NULL");
    WRONG(ask(1, 3, A, 0), "alignment: 3 is no power of two");
    WRONG(ask(1, 768, A, 0), "alignment: 768 is no power of two");
    WRONG(ask(1, (size_t)1 << 41, A, 0), "is no power of two up to 2^40");
    WRONG(ask(1, SIZE_MAX, A, 0), "is no power of two up to 2^40");
    WRONG(ask(1, 0, A, 8), "flags: 0x8 has an unknown bit");
    WRONG(ask(1, 0, A, ~0u), "has an unknown bit");
    WRONG(ask(1, 4 * MIB, A, GPUPOOL_OWN_CHUNK), "alignment: a chunk begins at a multiple of");
    REFUSES(ask(1, (size_t)1 << 40, A, 0), OUT_OF_MEMORY, "alignment");
    REFUSES(ask((size_t)1 << 46, 0, A, 0), OUT_OF_MEMORY, "ask for less");
    CHECK_EQ(gpupool_trim(arena, 0), GPUPOOL_OK); /* what has grown for them */
}

static void of_blocks(void) {
    char *block = (char *)blocks[LARGE].at, *shared = (char *)blocks[SHAPED].at;
    void *freed = gpupool_alloc(arena, 3000, A);
    kit_free(arena, freed, A);
    REFUSES(gpupool_free(arena, sent, A), NOT_OURS, "is in no memory of this arena");
    REFUSES(gpupool_free(arena, shared, A), NOT_OURS, "is in no memory of this arena");
    REFUSES(gpupool_free(arena, (void *)1, A), NOT_OURS, "is in no memory of this arena");
    REFUSES(gpupool_free(arena, block + 512, A), INSIDE, "not at its start");
    REFUSES(gpupool_free(arena, block + 1, A), INSIDE, "not at its start");
    REFUSES(gpupool_free(arena, freed, A), DOUBLE_FREE, "is free already");
    WRONG(gpupool_free(arena, block, foreign), "belongs to another device or context");
    REFUSES(gpupool_record_stream(arena, sent, A), NOT_OURS, "is in no memory of this arena");
    REFUSES(gpupool_record_stream(arena, NULL, A), NOT_OURS, "is in no memory of this arena");
    REFUSES(gpupool_record_stream(arena, block + 512, A), INSIDE, "not at its start");
    REFUSES(gpupool_record_stream(arena, freed, A), DOUBLE_FREE, "is free already");
    WRONG(gpupool_record_stream(arena, block, GPUPOOL_NO_STREAM), "stream: a use needs a stream");
    WRONG(gpupool_record_stream(arena, block, foreign), "belongs to another device or context");
    WRONG(gpupool_retire_stream(NULL), "stream: a default stream does not end");
    WRONG(gpupool_retire_stream(GPUPOOL_NO_STREAM), "nor NO_STREAM");
    WRONG(gpupool_get_block(arena, block, NULL), "block: it is NULL");
    REFUSES(gpupool_get_block(arena, NULL, &told.block), NOT_OURS, "is in no memory");
    REFUSES(gpupool_get_block(arena, block + 7, &told.block), INSIDE, "not at its start");
    CHECK(told.block.memory == block);
    REFUSES(gpupool_get_block(arena, freed, &told.block), DOUBLE_FREE, "is free already");
    WRONG(gpupool_export(arena, block, &exported), "it has no chunk of its own");
    WRONG(gpupool_export(arena, blocks[OWN].at, NULL), "exported: it is NULL");
    REFUSES(gpupool_export(arena, sent, &exported), NOT_OURS, "is in no memory");
    WRONG(gpupool_export(blocks[SHAPED].of, shared, &exported), "SHARE_PROCESSES");
}

static void of_figures(void) {
    FILE *read_only = fopen("/dev/null", "r");
    WRONG(gpupool_set_limit(arena, (size_t)-5), "18446744073709551611");
    WRONG(gpupool_set_limit_text(arena, NULL), "text: it is NULL");
    WRONG(gpupool_set_limit_text(arena, ""), "text: \"\" does not begin with a number");
    WRONG(gpupool_set_limit_text(arena, "much"), "\"much\" does not begin with a number");
    WRONG(gpupool_set_limit_text(arena, "5 GiBs"), "ends in no unit of: %");
    WRONG(gpupool_set_limit_text(arena, "0.8"), "needs a unit, or %");
    WRONG(gpupool_set_limit_text(arena, "-1"), "needs a unit, or %");
    WRONG(gpupool_set_limit_text(arena, "-100%"), "leaves nothing");
    WRONG(gpupool_set_limit_text(arena, "99999999T"), "is larger than any memory");
    WRONG(gpupool_get_available(arena, A, NULL), "bytes: it is NULL");
    WRONG(gpupool_get_available(arena, foreign, &told.bytes), "belongs to another device");
    WRONG(gpupool_get_stats(arena, NULL), "stats: it is NULL");
    WRONG(gpupool_walk_blocks(arena, NULL, NULL), "visit: it is NULL");
    WRONG(gpupool_report(arena, NULL), "file: it is NULL");
    WRONG(gpupool_write_json(arena, NULL), "file: it is NULL");
    REFUSES(gpupool_report(arena, read_only), FILE, "file: it cannot be written");
    REFUSES(gpupool_write_json(arena, read_only), FILE, "file: it cannot be written");
    fclose(read_only);
}

static void of_the_rest(void) {
    gpupool_exported empty = {2 * MIB, -1}, odd = {1000, -1};
    gpupool_imported nothing = {NULL, 0, 0};
    gpupool_capture *second;
    WRONG(gpupool_begin_capture(arena, A, NULL), "capture: it is NULL");
    WRONG(gpupool_begin_capture(arena, GPUPOOL_NO_STREAM, &made_scope), "a scope needs a stream");
    WRONG(gpupool_begin_capture(arena, foreign, &made_scope), "belongs to another device");
    CHECK_RESULT(gpupool_begin_capture(arena, A, &made_scope), GPUPOOL_OK);
    WRONG(gpupool_begin_capture(arena, A, &second), "stream: it has an open scope");
    CHECK_RESULT(gpupool_release_capture(made_scope), GPUPOOL_OK);
    WRONG(gpupool_end_capture(made_scope), "capture: it was released");
    WRONG(gpupool_release_capture(made_scope), "capture: it was released");
    WRONG(gpupool_end_capture(NULL), "capture: it is NULL");
    WRONG(gpupool_release_capture(NULL), "capture: it is NULL");
    made_scope = NULL;
    WRONG(gpupool_sleep(arena, (gpupool_content)2), "content: 2 is neither DISCARD nor KEEP");
    WRONG(gpupool_sleep(arena, (gpupool_content)-1), "content: -1 is neither");
    REFUSES(gpupool_sleep(device_arena, GPUPOOL_KEEP), UNSUPPORTED, "only MAPPED memory can sleep");
    WRONG(gpupool_wake(arena), "arena: it is awake");
    WRONG(gpupool_allow_peer(arena, -1), "device: -1 is not in 0 to 2");
    WRONG(gpupool_allow_peer(arena, 3), "device: 3 is not in 0 to 2");
    WRONG(gpupool_import(0, NULL, &imported), "one of them is NULL");
    WRONG(gpupool_import(0, &empty, NULL), "one of them is NULL");
    WRONG(gpupool_import(3, &empty, &imported), "device: 3 is not in 0 to 2");
    WRONG(gpupool_import(0, &odd, &imported), "exported.bytes: 1000 is no size of a chunk");
    REFUSES(gpupool_import(0, &empty, &imported), CUDA, "cuMemImportFromShareableHandle: cudaE");
    WRONG(gpupool_import_close(NULL), "imported: nothing is imported there");
    WRONG(gpupool_import_close(&nothing), "imported: nothing is imported there");
}

static gpupool_result shape_refuses(cudaError_t error) {
    CHECK_EQ(cudaGetLastError(), error);
    CHECK_EQ(error, cudaErrorInvalidValue);
    return error == cudaSuccess ? GPUPOOL_OK : gpupool_last_result();
}

static void of_shapes(void) {
    char *shared = (char *)blocks[SHAPED].at, *other = (char *)blocks[LARGE].at;
    WRONG(shape_refuses(gpupool_cudaMalloc(NULL, 1)), "pointer: it is NULL");
    WRONG(shape_refuses(gpupool_cudaMallocAsync(NULL, 1, A)), "pointer: it is NULL");
    REFUSES(shape_refuses(gpupool_cudaFree(shared + 512)), INSIDE, "not at its start");
    REFUSES(shape_refuses(gpupool_cudaFreeAsync(shared + 512, A)), INSIDE, "not at its start");
    REFUSES(shape_refuses(gpupool_cudaFree(other)), NOT_OURS, "gpupool_free is for it");
    REFUSES(shape_refuses(gpupool_cudaFreeAsync(other, A)), NOT_OURS, "gpupool_free is for it");
    CHECK_EQ(gpupool_cudaFree(sent), cudaErrorInvalidValue); /* CUDA's own says so */
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    fake_clear_failures();
    CHECK_EQ(gpupool_cudaMalloc(&shaped_at, SIZE_MAX), cudaErrorMemoryAllocation);
    CHECK_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

static gpupool_result create_ring_as(gpupool_ring_config config) {
    gpupool_result result = gpupool_ring_create(&made_ring, &config);
    CHECK(!made_ring);
    return result;
}
#define RING(...) create_ring_as((gpupool_ring_config){__VA_ARGS__})

static gpupool_result send_as(gpupool_transfer what) {
    gpupool_ticket unset = 77;
    what.ticket = &unset;
    gpupool_result result = gpupool_ring_transfer(ring, &what);
    CHECK_EQ(unset, 77);
    return result;
}
#define SEND(...) \
    send_as((gpupool_transfer){.to = blocks[LARGE].at, .from = sent, .bytes = SENT, __VA_ARGS__})

static int reads(void *to, size_t bytes, uint64_t offset, void *user) {
    return !to || !bytes || offset || user;
}
static int writes(const void *from, size_t bytes, uint64_t offset, void *user) {
    return !from || !bytes || offset || user;
}

static void of_rings(void) {
    void *block = blocks[LARGE].at;
    WRONG(gpupool_ring_create(NULL, NULL), "ring: it is NULL");
    WRONG(RING(.device = -1), "device: -1 is not in 0 to 2");
    WRONG(RING(.device = 3), "device: 3 is not in 0 to 2");
    WRONG(RING(.bytes = 1000), "config.bytes is not from 256 KiB to 16 TiB");
    WRONG(RING(.bytes = SIZE_MAX), "config.bytes is not from 256 KiB to 16 TiB");
    WRONG(RING(.slot_bytes = 1), "config.slot_bytes is not from 64 KiB to a quarter");
    WRONG(RING(.slot_bytes = SIZE_MAX), "config.slot_bytes is not from 64 KiB to a quarter");
    WRONG(RING(.workers = -2), "config.workers is not from -1 to 64");
    WRONG(RING(.workers = 65), "config.workers is not from -1 to 64");
    WRONG(SEND(.stream = GPUPOOL_NO_STREAM), "CUDA does not know it");
    WRONG(gpupool_ring_destroy(NULL), "ring: it is NULL");
    WRONG(gpupool_ring_get_stats(NULL, &told.ring), "ring: it is NULL");
    WRONG(gpupool_ring_get_stats(ring, NULL), "stats: it is NULL");
    WRONG(gpupool_ring_wait(NULL, 1, 0, NULL), "ring: it is NULL");
    WRONG(gpupool_ring_wait(ring, 0, -1, NULL), "no such ticket");
    WRONG(gpupool_ring_wait(ring, 12345, -1, NULL), "no such ticket");
    WRONG(gpupool_upload(NULL, block, sent, 1, A), "ring: it is NULL");
    WRONG(gpupool_upload(ring, NULL, sent, 1, A), "the device pointer is NULL");
    WRONG(gpupool_upload(ring, block, NULL, 1, A), "the host pointer is NULL");
    WRONG(gpupool_upload(ring, block, sent, SIZE_MAX, A), "more than any memory has");
    WRONG(gpupool_upload(ring, back, sent, SENT, A), "to: it is ordinary host memory");
    WRONG(gpupool_upload(ring, block, sent, 5 * MIB, A), "to: it goes beyond its block");
    WRONG(gpupool_upload(ring, block, sent, SENT, foreign), "belongs to another device or context");
    WRONG(gpupool_download(NULL, back, block, 1, A), "ring: it is NULL");
    WRONG(gpupool_download(ring, NULL, block, 1, A), "the host pointer is NULL");
    WRONG(gpupool_download(ring, back, NULL, 1, A), "the device pointer is NULL");
    WRONG(gpupool_download(ring, back, sent, SENT, A), "from: it is ordinary host memory");
    WRONG(gpupool_upload_file(NULL, block, &sent_file, A), "ring: it is NULL");
    WRONG(gpupool_upload_file(ring, block, NULL, A), "part: it is NULL");
    WRONG(gpupool_upload_file(ring, NULL, &sent_file, A), "the device pointer is NULL");
}

static void of_transfers(void) {
    gpupool_file_part none = {-1, 0, SENT}, later = sent_file;
    later.offset = 1;
    WRONG(gpupool_ring_transfer(NULL, NULL), "ring: it is NULL");
    WRONG(gpupool_ring_transfer(ring, NULL), "the transfer is NULL");
    WRONG(SEND(.direction = (gpupool_direction)2), "direction is neither UP nor DOWN");
    WRONG(SEND(.direction = (gpupool_direction)-1), "direction is neither UP nor DOWN");
    WRONG(SEND(.write = writes), "write is for DOWN");
    WRONG(SEND(.direction = GPUPOOL_DOWN, .read = reads), "are for UP");
    WRONG(SEND(.direction = GPUPOOL_DOWN, .is_file = 1), "are for UP");
    WRONG(SEND(.is_file = 1, .read = reads), "read or is_file are for UP");
    WRONG(SEND(.read = reads, .rows = 2), "functions and files have no rows");
    WRONG(SEND(.rows = 2), "rows need both pitches");
    WRONG(SEND(.to_pitch = SENT, .from_pitch = SENT), "pitches need rows");
    WRONG(SEND(.rows = 2, .to_pitch = SENT - 1, .from_pitch = SENT), "at least the bytes of a row");
    WRONG(SEND(.rows = SIZE_MAX / 8, .to_pitch = SENT, .from_pitch = SENT), "pitch by rows");
    WRONG(SEND(.is_file = 1, .offset = UINT64_MAX), "no file has so many bytes");
    REFUSES(gpupool_upload_file(ring, blocks[LARGE].at, &none, A), FILE, "file");
    REFUSES(gpupool_upload_file(ring, blocks[LARGE].at, &later, A), FILE, "it ends here, before");
}

static void wrong_arguments(void) {
    gpupool_arena_config config = config_of(GPUPOOL_SOURCE_DEVICE, "device");
    source = GPUPOOL_SOURCE_MAPPED;
    build();
    CHECK_EQ(cudaSetDevice(2), cudaSuccess);
    CHECK_EQ(cudaStreamCreateWithFlags(&foreign, cudaStreamNonBlocking), cudaSuccess);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    device_arena = kit_create(&config);
    destroyed = kit_open(0);
    kit_close(destroyed);
    see(arena, &before_all);
    of_no_arena(NULL, "arena: it is NULL");
    of_no_arena(destroyed, "arena: it was destroyed, or never created");
    of_create();
    of_requests();
    of_blocks();
    of_figures();
    of_the_rest();
    of_shapes();
    of_rings();
    of_transfers();
    each_declared(was_called);
    kit_close(device_arena);
    CHECK_EQ(cudaStreamDestroy(foreign), cudaSuccess);
    is_whole = 1;
    end();
}

#endif /* CHECK_FAKE */

/* The last error is the thread's last failure, and a success leaves it. */
static void last_error(void) {
    gpupool_arena *own = kit_open(64 * MIB);
    KIT_FAILS(gpupool_alloc(own, 0, NULL), GPUPOOL_E_ARGUMENT, "bytes");
    kit_free(own, gpupool_alloc(own, 5000, kit_stream[0]), kit_stream[0]);
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "bytes"));
    CHECK(strcmp(gpupool_result_name(GPUPOOL_E_DOUBLE_FREE), "GPUPOOL_E_DOUBLE_FREE") == 0);
    CHECK(gpupool_result_name((gpupool_result)99));
    kit_close(own);
}

int main(void) {
#if CHECK_FAKE
    fill_file();
    TEST(wrong_arguments);
#endif
    KIT_TEST(last_error);
    return check_finish();
}
