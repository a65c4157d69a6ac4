/* The default arenas, and CUDA's own call shapes on them: without virtual memory management, while
   another thread makes or ends one, in a child process, and when a config or a device will
   not do. */
// build: plain
// build: asan -fsanitize=address
#define _DEFAULT_SOURCE /* setenv */
#include <pthread.h>

static long mutexes; /* that are open */
static int open_mutex(pthread_mutex_t *mutex, const pthread_mutexattr_t *as) {
    __atomic_fetch_add(&mutexes, 1, __ATOMIC_RELAXED);
    return pthread_mutex_init(mutex, as);
}
static int close_mutex(pthread_mutex_t *mutex) {
    __atomic_fetch_sub(&mutexes, 1, __ATOMIC_RELAXED);
    return pthread_mutex_destroy(mutex);
}
#define pthread_mutex_init open_mutex
#define pthread_mutex_destroy close_mutex
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef pthread_mutex_init
#undef pthread_mutex_destroy
#include "arena_kit.h"

#include <limits.h>
#include <sched.h>
#include <sys/wait.h>

#if CHECK_FAKE

/* Chunks of cudaMalloc: whose a pointer is, is found among them. */
static void on_a_device_without_mapping(void) {
    void *block[3], *theirs = NULL;
    fake_device_vmm(0, 0);
    CHECK_EQ(cudaMalloc(&theirs, MIB), cudaSuccess);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(gpupool_cudaMalloc(&block[i], 30 * MIB), cudaSuccess);
    gpupool_arena *arena = gpupool_get_default_arena(0);
    CHECK(kit_stats(arena).chunks_gained > 1);
    CHECK_EQ(kit_stats(arena).blocks.now, 3);
    CHECK_EQ(gpupool_cudaFree(theirs), cudaSuccess);
    CHECK_EQ(kit_stats(arena).blocks.now, 3);
    for (int i = 0; i < 3; i++) CHECK_EQ(gpupool_cudaFree(block[i]), cudaSuccess);
    CHECK_EQ(kit_stats(arena).blocks.now, 0);
    kit_close(arena);
}

/* Programs that call cudaIpcGetMemHandle need cudaMalloc's own memory beneath them. */
static void the_environment_chooses_the_source(void) {
    static const struct { const char *name; gpupool_source source; } asked[] = {
        {"", GPUPOOL_SOURCE_MAPPED}, {"auto", GPUPOOL_SOURCE_MAPPED},
        {"mapped", GPUPOOL_SOURCE_MAPPED}, {"device", GPUPOOL_SOURCE_DEVICE},
        {"managed", GPUPOOL_SOURCE_MANAGED}, {"bypass", GPUPOOL_SOURCE_BYPASS}};
    gpupool_block found;
    void *block = NULL;
    for (size_t i = 0; i < KIT_COUNT(asked); i++) {
        check_case("GPUPOOL_SOURCE=%s", asked[i].name);
        CHECK_EQ(setenv("GPUPOOL_SOURCE", asked[i].name, 1), 0);
        CHECK_EQ(gpupool_cudaMalloc(&block, MIB), cudaSuccess);
        CHECK_RESULT(gpupool_get_block(NULL, block, &found), GPUPOOL_OK);
        CHECK_EQ(found.source, asked[i].source);
        CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
        kit_close(gpupool_get_default_arena(0));
    }
    check_case(" ");
    CHECK_EQ(setenv("GPUPOOL_SOURCE", "Device", 1), 0);
    CHECK(!gpupool_get_default_arena(0));
    CHECK_EQ(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "GPUPOOL_SOURCE is \"Device\""));
    CHECK(gpupool_cudaMalloc(&block, MIB) != cudaSuccess);
    cudaGetLastError();
    CHECK_EQ(unsetenv("GPUPOOL_SOURCE"), 0);
}

static void an_end_in_vain_leaves_it_the_default(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    void *block = kit_alloc(arena, 1000, kit_stream[0]);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_IN_USE);
    CHECK(gpupool_get_default_arena(0) == arena);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    fake_fail_call("cuMemUnmap", 1, 0, 0);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK(gpupool_get_default_arena(0) == arena);
    uint64_t streams = arena->clocks.stream_count; /* but for that of all streams, which stays */
    CHECK_EQ(gpupool_cudaMalloc(&block, 1000), cudaSuccess);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    CHECK_EQ(arena->clocks.stream_count, streams);
    kit_close(arena);
}

/* There may be so many devices as the table has room for, and the last is named. */
static void devices_that_none_can_be(void) {
    static const int devices[] = {-2, GPI_DEVICES_MAX, 1 << 20};
    char words[40];
    snprintf(words, sizeof words, " to %d", (int)(KIT_COUNT(gpi_process.default_arenas)) - 1);
    for (size_t i = 0; i < KIT_COUNT(devices); i++) {
        check_case("device %d", devices[i]);
        CHECK(gpupool_find_default_arena(devices[i]) == NULL);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
        CHECK(strstr(gpupool_last_error(), words) != NULL);
        CHECK(gpupool_get_default_arena(devices[i]) == NULL);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    }
    CHECK(gpupool_find_default_arena(GPI_DEVICES_MAX - 1) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
}

/* A call that succeeds leaves the sentence of the last that failed. */
static void the_last_sentence_stays(void) {
    for (int get = 0; get < 2; get++) {
        gpupool_arena *arena = gpupool_get_default_arena(0);
        CHECK(!gpupool_alloc(arena, 0, kit_stream[0]));
        CHECK_RESULT(gpupool_check(NULL), GPUPOOL_E_ARGUMENT);
        if (get) CHECK(gpupool_get_default_arena(0) == arena);
        else CHECK(gpupool_find_default_arena(0) == arena);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
        CHECK(strstr(gpupool_last_error(), "gpupool_check") != NULL);
        kit_close(arena);
    }
}

/* Another thread has renewed it meanwhile: nothing is left to do, and what it has stays. */
static void one_that_is_open_is_not_renewed(void) {
    int wait = 1;
    gpupool_arena *arena = gpupool_get_default_arena(0);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    CHECK(gpi_default_start_renewing(0, &wait) == NULL);
    CHECK_EQ(wait, 0);
    CHECK(gpupool_find_default_arena(0) == arena);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    kit_close(arena);
}

/* Another thread is at it: this one is to wait. */
static void one_that_is_being_renewed(void) {
    int wait = 0, forks;
    gpupool_arena *arena = gpupool_get_default_arena(0);
    forks = arena->forks;
    arena->forks = GPI_RENEWING;
    CHECK(gpi_default_start_renewing(0, &wait) == NULL);
    CHECK_EQ(wait, 1);
    arena->forks = forks;
    kit_close(arena);
}

/* Made again in its place, it has as many of the system's mutexes as before; at the end none. */
static void made_again_without_a_mutex_more(void) {
    long before = mutexes, open;
    gpupool_arena *arena = gpupool_get_default_arena(0);
    open = mutexes;
    CHECK(open > before);
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    CHECK(gpupool_get_default_arena(0) == arena);
    CHECK_EQ(mutexes, open);
    kit_close(arena);
    CHECK_EQ(mutexes, before);
}

/* ---- two threads at it ---- */

static gpupool_arena *elsewhere;
static void make_the_default(void *unused) {
    (void)unused;
    elsewhere = gpupool_get_default_arena(0);
}

/* And the end fails. */
static void ended_while_another_is_made(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    void *block = kit_alloc(arena, 1000, kit_stream[0]);
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[0]), GPUPOOL_OK);
    fake_before_call("cuMemUnmap", 1, make_the_default, NULL);
    fake_fail_call("cuMemAddressFree", 1, 0, 0);
    CHECK_RESULT(gpupool_arena_destroy(arena), GPUPOOL_E_CUDA);
    fake_fail_clear();
    CHECK(elsewhere != NULL && elsewhere != arena);
    CHECK(gpupool_get_default_arena(0) == elsewhere);
    kit_close(arena); /* an arena like any other now */
    CHECK(gpupool_get_default_arena(0) == elsewhere);
    kit_close(elsewhere);
}

static void made_by_two(void) {
    fake_before_call("cuThreadExchangeStreamCaptureMode", 1, make_the_default, NULL);
    gpupool_arena *arena = gpupool_get_default_arena(0);
    CHECK(arena == elsewhere && gpupool_get_default_arena(0) == arena);
    CHECK_EQ(gpupool_last_result(), GPUPOOL_OK);
    kit_close(arena);
}

/* A chunk_alloc has the default arena made, ends another arena and destroys a stream, while who
   looks through all arenas waits for the one that it is called by. */
static pthread_t destroyer;
static gpupool_arena *ended;
static int with_default;

static void *destroy_a_stream(void *stream) {
    CHECK_EQ(cudaStreamDestroy((cudaStream_t)stream), cudaSuccess);
    return NULL;
}

static void *of_the_default(size_t bytes, int device, void *user) {
    void *chunk = NULL;
    (void)device;
    CHECK_EQ(pthread_create(&destroyer, NULL, destroy_a_stream, user), 0);
    kit_close(ended);
    CHECK_EQ(cudaStreamDestroy(kit_stream[2]), cudaSuccess);
    kit_stream[2] = NULL;
    with_default = gpupool_cudaMalloc(&chunk, bytes) == cudaSuccess;
    return chunk;
}

static void to_the_default(void *chunk, size_t bytes, int device, void *user) {
    (void)bytes, (void)device, (void)user;
    CHECK_EQ(gpupool_cudaFree(chunk), cudaSuccess);
}

static void made_by_a_chunk_alloc(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_CUSTOM);
    void *block;
    config.chunk_alloc = of_the_default;
    config.chunk_free = to_the_default;
    config.user = kit_stream[0];
    config.limit_bytes = 1;
    gpupool_arena *arena = kit_create(&config);
    ended = kit_open(GPUPOOL_SOURCE_DEVICE);
    CHECK(gpupool_alloc(arena, MIB, kit_stream[0]) == NULL); /* it knows the stream now */
    CHECK_RESULT(gpupool_set_limit(arena, 0), GPUPOOL_OK);
    block = kit_alloc(arena, MIB, kit_stream[1]);
    CHECK(with_default);
    CHECK_EQ(pthread_join(destroyer, NULL), 0);
    kit_stream[0] = NULL;
    CHECK_RESULT(gpupool_free(arena, block, kit_stream[1]), GPUPOOL_OK);
    kit_close(arena);
    kit_close(gpupool_get_default_arena(0));
}

static void *close_it(void *of) {
    CHECK_RESULT(gpupool_arena_destroy((gpupool_arena *)of), GPUPOOL_OK);
    return NULL;
}

/* Who looks through all arenas is at one that is ended meanwhile: it stays until that is done. */
static void ended_while_a_stream_is(void) {
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_DEVICE);
    pthread_t closer;
    CHECK_RESULT(gpupool_free(arena, kit_alloc(arena, MIB, kit_stream[0]), kit_stream[0]),
                 GPUPOOL_OK);
    gpi_host_mutex_lock(&arena->growing);
    CHECK_EQ(pthread_create(&destroyer, NULL, destroy_a_stream, kit_stream[0]), 0);
    CHECK_EQ(pthread_create(&closer, NULL, close_it, arena), 0);
    for (int i = 0; i < 300; i++) gpi_host_idle(4096); /* 30 ms for the closer to come so far */
    CHECK(gpi_process.arenas == arena);
    gpi_host_mutex_unlock(&arena->growing);
    CHECK_EQ(pthread_join(destroyer, NULL), 0);
    CHECK_EQ(pthread_join(closer, NULL), 0);
    CHECK(gpi_process.arenas == NULL);
    kit_stream[0] = NULL;
}

static void *free_it(void *block) {
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    return NULL;
}

/* So does who looks for the one that an address is of. */
static void ended_while_another_is_looked_for(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    pthread_t closer;
    void *block = NULL;
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(gpupool_cudaMalloc(&block, MIB), cudaSuccess);
    gpi_host_lock(&arena->lock);
    CHECK_EQ(pthread_create(&destroyer, NULL, free_it, block), 0);
    for (int i = 0; i < 300; i++) gpi_host_idle(4096); /* 30 ms for it to look into that arena */
    CHECK_EQ(pthread_create(&closer, NULL, close_it, arena), 0);
    for (int i = 0; i < 300; i++) gpi_host_idle(4096);
    CHECK(gpi_process.default_arenas[0] == arena);
    gpi_host_unlock(&arena->lock);
    CHECK_EQ(pthread_join(destroyer, NULL), 0);
    CHECK_EQ(pthread_join(closer, NULL), 0);
    kit_close(gpupool_get_default_arena(1));
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
}

static void close_beside(void *arena) {
    CHECK_EQ(pthread_create(&destroyer, NULL, close_it, arena), 0);
    for (int i = 0; i < 300; i++) gpi_host_idle(4096); /* 30 ms for it to end the arena */
    CHECK(gpi_process.default_arenas[0] == arena);
}

static void reset_and_close_beside(void *arena) {
    CHECK_EQ(cudaDeviceReset(), cudaSuccess);
    for (int i = 0; i < KIT_STREAMS; i++) kit_stream[i] = NULL;
    close_beside(arena);
}

/* So does who asks by the current device's arena which device a stream is of; after a reset too. */
static void ended_while_a_device_is_asked_for(void) {
    for (int reset = 0; reset < 2; reset++) {
        check_case("reset %d", reset);
        gpupool_arena *arena = gpupool_get_default_arena(0);
        cudaStream_t peer;
        void *block = NULL;
        CHECK_EQ(cudaSetDevice(1), cudaSuccess);
        CHECK_EQ(cudaStreamCreateWithFlags(&peer, cudaStreamNonBlocking), cudaSuccess);
        CHECK_EQ(cudaSetDevice(0), cudaSuccess);
        fake_before_call("cuStreamGetCtx", 1, reset ? reset_and_close_beside : close_beside, arena);
        CHECK_EQ(gpupool_cudaMallocAsync(&block, MIB, peer), cudaSuccess);
        CHECK_EQ(pthread_join(destroyer, NULL), 0);
        CHECK(gpi_process.default_arenas[0] == NULL);
        CHECK_EQ(gpupool_cudaFreeAsync(block, peer), cudaSuccess);
        CHECK_EQ(cudaStreamDestroy(peer), cudaSuccess);
        kit_close(gpupool_get_default_arena(1));
    }
}

/* ---- errors in CUDA's words ---- */

static void free_in_a_capture(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    void *block = kit_alloc(arena, MIB, kit_stream[0]);
    cudaGraph_t graph = NULL;
    CHECK_RESULT(gpupool_record_stream(arena, block, kit_stream[1]), GPUPOOL_OK);
    CHECK_EQ(cudaStreamBeginCapture(kit_stream[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    CHECK_EQ(gpupool_cudaFreeAsync(block, kit_stream[0]), cudaSuccess); /* and waits for a mark */
    CHECK_EQ(cudaStreamEndCapture(kit_stream[0], &graph), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    kit_close(arena);
}

static void in_a_child(void) {
    int status = -1;
    void *block = NULL;
    gpupool_arena *arena = gpupool_get_default_arena(0), *made = NULL;
    CHECK_EQ(gpupool_cudaMalloc(&block, 1000), cudaSuccess);
    pid_t child = fork();
    if (child == 0) {
        void *other = block;
        int wrong = gpupool_cudaMalloc(&other, 1000) != cudaErrorInitializationError;
        wrong += other != NULL;
        wrong += gpupool_cudaMallocAsync(&other, 1000, kit_stream[0]) !=
                 cudaErrorInitializationError;
        wrong += gpupool_cudaFree(block) == cudaSuccess; /* nobody's here: CUDA is asked */
        wrong += gpupool_get_default_arena(0) != NULL;
        wrong += gpupool_arena_create(&made, NULL) != GPUPOOL_E_FORKED;
        wrong += gpupool_get_stats(arena, NULL) != GPUPOOL_E_FORKED;
        gpupool_exported exported;
        gpupool_imported imported;
        memset(&exported, 0, sizeof exported);
        exported.bytes = MIB;
        wrong += gpupool_import(0, &exported, &imported) != GPUPOOL_E_FORKED;
        _exit(wrong);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
    CHECK_EQ(gpupool_cudaFree(block), cudaSuccess);
    kit_close(arena);
}

/* There no arena has memory that could be freed, and a lock may be held by a thread that the child
   does not have. */
static void in_a_child_of_another_arena(void) {
    int status = -1;
    gpupool_arena *arena = kit_open(GPUPOOL_SOURCE_AUTO);
    void *block = kit_alloc(arena, 1000, 0);
    gpi_host_lock(&arena->lock);
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        _exit(gpupool_cudaFree(block) != cudaErrorInitializationError);
    }
    gpi_host_unlock(&arena->lock);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_RESULT(gpupool_free(arena, block, 0), GPUPOOL_OK);
    kit_close(arena);
}

/* ---- arenas that cannot be made ---- */

/* The numbers that a device can have are told. */
static void of_no_device(void) {
    static const int wrong[] = {-2, GPI_DEVICES_MAX, INT_MAX};
    char words[60];
    snprintf(words, sizeof words, "from -1 (the current one) to %d", GPI_DEVICES_MAX - 1);
    for (size_t i = 0; i < KIT_COUNT(wrong); i++) {
        CHECK(gpupool_find_default_arena(wrong[i]) == NULL);
        CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
        CHECK(strstr(gpupool_last_error(), words) != NULL);
    }
    CHECK(gpupool_find_default_arena(GPI_DEVICES_MAX - 1) == NULL); /* though there is none yet */
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_OK);
}

static void the_current_device_is_not_known(void) {
    gpupool_arena *arena = NULL;
    void *block = NULL;
    fake_fail_call("cudaGetDevice", 1, 0, 0);
    CHECK_RESULT(gpupool_arena_create(&arena, NULL), GPUPOOL_E_CUDA);
    CHECK(arena == NULL);
    fake_fail_call("cudaGetDevice", 1, 0, 0);
    CHECK(gpupool_get_default_arena(GPUPOOL_DEVICE_CURRENT) == NULL);
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_CUDA);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    fake_fail_call("cudaGetDevice", 1, 0, 0);
    CHECK_EQ(gpupool_cudaMallocAsync(&block, MIB, kit_stream[0]), cudaSuccess); /* the stream's */
    CHECK_EQ(fake_fail_fired(), 3); /* the two above, too */
    fake_fail_clear();
    CHECK_EQ(gpupool_cudaFreeAsync(block, kit_stream[0]), cudaSuccess);
    CHECK_EQ(gpupool_cudaMallocAsync(&block, MIB, cudaStreamPerThread), cudaSuccess);
    CHECK_EQ(gpupool_cudaFreeAsync(block, cudaStreamPerThread), cudaSuccess);
    kit_close(gpupool_get_default_arena(0));
}

/* A fence for what is freed is of the arena's device, or there is none. */
static void freed_where_the_context_is_not_to_be_had(void) {
    void *block[2];
    CHECK_EQ(gpupool_cudaMalloc(&block[0], 2 * MIB), cudaSuccess);
    fake_hold(kit_stream[0], 1);
    kit_fill(kit_stream[0], block[0], 512, 1);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    fake_fail_call("cuCtxPushCurrent", 1, 1, 0);
    CHECK_EQ(gpupool_cudaFree(block[0]), cudaSuccess);
    CHECK(fake_fail_fired() > 0);
    fake_fail_clear();
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    CHECK_EQ(gpupool_cudaMalloc(&block[1], 2 * MIB), cudaSuccess);
    kit_fill(kit_stream[1], block[1], 512, 2);
    fake_hold(kit_stream[0], 0);
    CHECK_EQ(gpupool_cudaFree(block[1]), cudaSuccess);
    kit_close(gpupool_get_default_arena(0));
}

/* Then the device counts as it was, and to the caller no call has failed. */
static void whether_it_was_reset_is_not_known(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    CHECK_RESULT(gpupool_free(NULL, NULL, 0), GPUPOOL_E_ARGUMENT);
    fake_fail_call("cuCtxGetId", 1, 0, CUDA_ERROR_UNKNOWN);
    CHECK_EQ(gpi_life_was_reset(arena), 0);
    CHECK_EQ(fake_fail_fired(), 1);
    fake_fail_clear();
    CHECK_RESULT(gpupool_last_result(), GPUPOOL_E_ARGUMENT);
    CHECK(strstr(gpupool_last_error(), "cuCtxGetId") == NULL);
    kit_close(arena);
}

/* What the driver does not take back when a creation fails is the driver's; the host's part is
   freed, and the first failure is told. */
static void neither_made_nor_undone(void) {
    gpupool_arena_config config = kit_config(GPUPOOL_SOURCE_MAPPED);
    gpupool_arena *arena = NULL;
    config.reserve_bytes = 8 * MIB;
    fake_fail_call("cuMemMap", 1, 1, 0);
    fake_fail_call("cuMemRelease", 1, 1, 0);
    CHECK_RESULT(gpupool_arena_create(&arena, &config), GPUPOOL_E_CUDA);
    CHECK(strstr(gpupool_last_error(), "cuMemMap") != NULL);
    CHECK(arena == NULL);
    fake_fail_clear();
    CHECK(kit_drop_the_rest() > 0);
}
/* ---- a soft limit ---- */

static int told;

/* It may be what another thread waits for that waits for visitors. */
static void no_visit_is_left(const gpupool_soft_limit *what, void *unused) {
    (void)unused;
    CHECK_EQ(what->arena->visitors, 0);
    CHECK_EQ(what->is_over, told++ % 2 == 0); /* over, and under again, in turn */
}

static void told_of_a_tag_by_a_free(void) {
    gpupool_arena *arena = gpupool_get_default_arena(0);
    gpupool_request request = kit_request(2 * MIB, kit_stream[0], 0);
    gpupool_tag_config config;
    memset(&config, 0, sizeof config);
    config.soft_limit_bytes = MIB;
    config.on_soft_limit = no_visit_is_left;
    CHECK_RESULT(gpupool_tag(arena, "t", &config, &request.tag), GPUPOOL_OK);
    told = 0;
    CHECK_EQ(gpupool_cudaFree(gpupool_alloc_request(arena, &request)), cudaSuccess);
    CHECK_EQ(told, 2);
    void *block = gpupool_alloc_request(arena, &request);
    CHECK_EQ(gpupool_cudaFreeAsync(block, kit_stream[0]), cudaSuccess);
    CHECK_EQ(told, 4);
    kit_close(arena);
}
#endif

int main(void) {
    FAKE_TEST(on_a_device_without_mapping);
    FAKE_TEST(the_environment_chooses_the_source);
    FAKE_TEST(an_end_in_vain_leaves_it_the_default);
    FAKE_TEST(devices_that_none_can_be);
    FAKE_TEST(the_last_sentence_stays);
    FAKE_TEST(one_that_is_open_is_not_renewed);
    FAKE_TEST(one_that_is_being_renewed);
    FAKE_TEST(made_again_without_a_mutex_more);
    FAKE_TEST(ended_while_another_is_made);
    FAKE_TEST(made_by_two);
    FAKE_TEST(made_by_a_chunk_alloc);
    FAKE_TEST(ended_while_a_stream_is);
    FAKE_TEST(ended_while_another_is_looked_for);
    FAKE_TEST(ended_while_a_device_is_asked_for);
    FAKE_TEST(free_in_a_capture);
    FAKE_TEST(in_a_child);
    FAKE_TEST(in_a_child_of_another_arena);
    FAKE_TEST(of_no_device);
    FAKE_TEST(the_current_device_is_not_known);
    FAKE_TEST(freed_where_the_context_is_not_to_be_had);
    FAKE_TEST(whether_it_was_reset_is_not_known);
    FAKE_TEST(neither_made_nor_undone);
    FAKE_TEST(told_of_a_tag_by_a_free);
    return check_finish();
}
