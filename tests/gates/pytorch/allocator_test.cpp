/* examples/pytorch_allocator.cpp as PyTorch calls it, on the simulated GPU with its race oracle. */
#include "pytorch_allocator.cpp"

#include "fakecuda/fakecuda.h"

static const size_t MIB = (size_t)1 << 20;
static int bad;
static cudaStream_t eager, side;

static void check(bool truth, const char *what, int line) {
    if (truth) return;
    bad++;
    printf("allocator_test.cpp:%d: %s does not hold\n", line, what);
}
#define CHECK(truth) check((truth), #truth, __LINE__)
#define CUDA(call) check((call) == cudaSuccess, #call, __LINE__)

static gpupool_stats stats() {
    gpupool_stats now = {};
    CHECK(gpupool_torch_stats(0, &now) == GPUPOOL_OK);
    return now;
}

struct tensor { /* made, and filled with a number, on a stream */
    void *block;
    size_t bytes;
    cudaStream_t stream;
    int number;
};

static tensor make(size_t bytes, cudaStream_t stream, int number) {
    tensor t = {gpupool_torch_alloc(bytes, 0, stream), bytes, stream, number};
    CUDA(fake_write(stream, "fill", t.block, bytes, number));
    return t;
}

static void look(const tensor &t, cudaStream_t stream) {
    CUDA(fake_read(stream, "look", t.block, t.bytes, t.number));
}

static void drop(const tensor &t) {
    gpupool_torch_free(t.block, t.bytes, 0, t.stream);
}

struct graph { /* torch.cuda.CUDAGraph */
    mempool_id pool;
    cudaGraphExec_t exec = nullptr;

    void begin() {
        gpupool_torch_begin_pool(0, pool, [](cudaStream_t) { return true; });
        CUDA(cudaStreamBeginCapture(side, cudaStreamCaptureModeGlobal));
    }

    void end() {
        cudaGraph_t made = nullptr;
        CUDA(cudaStreamEndCapture(side, &made));
        gpupool_torch_end_pool(0, pool);
        CUDA(cudaGraphInstantiate(&exec, made, 0));
        CUDA(cudaGraphDestroy(made));
    }

    void replay() { CUDA(cudaGraphLaunch(exec, eager)); }

    void reset() {
        gpupool_torch_release_pool(0, pool);
        CUDA(cudaGraphExecDestroy(exec));
    }
};

static void replays_and_eager_work_have_their_own() {
    graph g = {{1, 0}};
    tensor in = make(MIB, eager, 1);
    CUDA(cudaDeviceSynchronize());
    g.begin();
    tensor gone[3], out;
    for (int i = 0; i < 3; i++) gone[i] = make(MIB * (size_t)(i + 1), side, 10 + i);
    out = make(4 * MIB, side, 13);
    look(in, side);
    for (const tensor &t : gone) look(t, side), drop(t);
    drop(make(MIB, side, 77)); /* the graph's own memory may come again in it */
    g.end();
    for (int round = 0; round < 100; round++) {
        g.replay();
        look(out, eager);
        tensor a = make(MIB * (size_t)(1 + round % 5), eager, 100);
        tensor b = make(MIB * (size_t)(1 + round % 3), side, 101);
        look(a, eager), look(b, side);
        drop(a), drop(b);
    }
    CUDA(cudaDeviceSynchronize());
    g.reset(); /* and one of its tensors lives on */
    tensor more = make(64 * MIB, eager, 5);
    look(out, eager);
    CHECK(pools.size() == 1);
    drop(out);
    CHECK(pools.empty() && tensors.empty());
    drop(more), drop(in);
}

static void graphs_share_a_pool() {
    graph g = {{2, 0}}, h = {{2, 0}};
    g.begin();
    drop(make(MIB, side, 1));
    g.end();
    h.begin();
    tensor b = make(2 * MIB, side, 2);
    h.end();
    g.reset();
    h.replay();
    look(b, eager);
    drop(b);
    CHECK(pools.size() == 1);
    h.reset();
    CHECK(pools.empty());
}

/* In a capture, a stream that a tensor was lent to may be at it in every replay. */
static void lent_inside_a_capture() {
    graph g = {{3, 0}};
    cudaStream_t other;
    cudaEvent_t event;
    CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    g.begin();
    tensor lent = make(MIB, side, 3);
    CUDA(cudaEventRecord(event, side));
    CUDA(cudaStreamWaitEvent(other, event, 0));
    look(lent, other);
    gpupool_torch_record_stream(lent.block, other);
    drop(lent);
    tensor next = make(MIB, side, 4);
    CHECK(next.block != lent.block);
    drop(next);
    CUDA(cudaEventRecord(event, other));
    CUDA(cudaStreamWaitEvent(side, event, 0));
    g.end();
    for (int i = 0; i < 20; i++) g.replay();
    CUDA(cudaDeviceSynchronize());
    g.reset();
    CUDA(cudaEventDestroy(event));
    CHECK(gpupool_retire_stream(other) == GPUPOOL_OK);
    CUDA(cudaStreamDestroy(other));
}

static void lent_to_another_stream() {
    tensor t = make(MIB, eager, 9);
    CUDA(cudaStreamSynchronize(eager));
    look(t, side);
    gpupool_torch_record_stream(t.block, side);
    drop(t);
    drop(make(MIB, eager, 8));
}

/* At some time there is PyTorch's exception, whose message begins in PyTorch's words and ends in
   gpupool's; at once for more than any device has, which to gpupool is a wrong argument. */
static void out_of_memory_is_an_exception() {
    std::vector<tensor> had = {make(MIB, eager, 1)};
    gpupool_torch_fraction(0.0001, 0);
    for (size_t bytes : {SIZE_MAX, 3 * MIB / 2, (size_t)1000})
        try {
            while (had.size() < 100000) had.push_back(make(bytes, eager, 2));
            CHECK(!"thrown");
        } catch (const c10::OutOfMemoryError &error) {
            CHECK(strstr(error.what(), "CUDA out of memory. Tried to allocate ") == error.what());
            CHECK(strstr(error.what(), bytes == SIZE_MAX ? "2^46" : "limit"));
        }
    gpupool_torch_fraction(1.0, 0);
    for (const tensor &t : had) look(t, eager), drop(t);
}

/* An empty tensor has no block. A device that has had none has no arena to give it back to. */
static void nothing_is_no_block() {
    CHECK(gpupool_torch_alloc(0, 0, eager) == nullptr);
    drop(make(MIB, eager, 1));
    CHECK(gpupool_last_result() == GPUPOOL_OK);
    gpupool_torch_free(nullptr, 0, 0, eager);
    gpupool_torch_free(nullptr, 0, 1, eager);
    gpupool_torch_record_stream(nullptr, side);
    CHECK(gpupool_last_result() == GPUPOOL_OK);
}

static void nothing_is_left() {
    CUDA(cudaDeviceSynchronize());
    gpupool_torch_empty_cache();
    CHECK(stats().blocks == 0 && stats().reserved.now == 0);
    CHECK(gpupool_check(arena_of(0)) == GPUPOOL_OK);
    CHECK(fake_failures() == 0 && fake_misuses() == 0);
}

int main() {
    fake_mode(FAKE_THREADED);
    CUDA(cudaStreamCreateWithFlags(&eager, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    for (auto test : {nothing_is_no_block, lent_to_another_stream, out_of_memory_is_an_exception,
                      replays_and_eager_work_have_their_own, graphs_share_a_pool,
                      lent_inside_a_capture}) {
        test(); /* what it throws ends the program */
        nothing_is_left();
    }
    return bad != 0;
}
