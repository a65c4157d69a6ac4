/* How do PyTorch's captured graphs keep their memory on gpupool? Part of pytorch_allocator.cpp.

   PyTorch opens a pool before a capture, closes the pool after the capture, and releases the pool
   with the graph. A stream that captures for a pool gets a scope (gpupool_begin_capture), so nobody
   else gets the graph's memory before the release, and before the last tensor in that memory is
   gone: PyTorch lets tensors of a graph outlive the graph.
   What to look at: pytorch_graphs.py runs it. */
#include "gpupool.h"

#include <atomic>
#include <c10/util/Exception.h>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#define MUST(call) TORCH_CHECK((call) == GPUPOOL_OK, "gpupool: ", gpupool_last_error())
#define MUST_CUDA(call)                                                                     \
    do {                                                                                    \
        cudaError_t error = (call);                                                         \
        TORCH_CHECK(error == cudaSuccess, "gpupool: " #call ": ", cudaGetErrorString(error)); \
    } while (0)

namespace graphs {

typedef std::pair<unsigned long long, unsigned long long> pool_id; /* c10::MempoolId_t */
typedef std::function<bool(cudaStream_t)> stream_filter;

struct pool {
    int users = 0;                                     /* captures and graphs */
    size_t tensors = 0;                                /* that live in it */
    stream_filter captures;                            /* whether a stream captures for it */
    std::map<cudaStream_t, gpupool_capture *> open;
    std::vector<gpupool_capture *> closed;
};

std::mutex lock;
std::map<std::pair<int, pool_id>, pool> pools;
std::unordered_map<void *, std::pair<int, pool_id>> owners; /* of tensors */
std::atomic<size_t> opened{0}, owned{0};               /* most programs need no more than these */

/* Gives back what is nobody's any more. What cannot be, while another stream captures, is tried
   again after that. */
void settle() {
    for (auto at = pools.begin(); at != pools.end();) {
        pool &p = at->second;
        while (!p.users && !p.tensors && !p.closed.empty() &&
               gpupool_release_capture(p.closed.back()) == GPUPOOL_OK)
            p.closed.pop_back();
        if (p.users || p.tensors || !p.closed.empty()) ++at;
        else at = pools.erase(at);
    }
}

/* Before a block is got: if the stream captures for a pool, it has a scope from now on. */
bool enter(gpupool_arena *arena, int device, cudaStream_t stream, std::pair<int, pool_id> *which) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const std::lock_guard<std::mutex> hold(lock);
    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) cudaGetLastError(); /* a default
                                        stream beside captures: it is in none itself */
    if (status != cudaStreamCaptureStatusActive) return false;
    for (auto &at : pools) {
        pool &p = at.second;
        if (at.first.first != device || !p.captures || !p.captures(stream)) continue;
        if (!p.open.count(stream)) {
            gpupool_capture *scope;
            MUST(gpupool_begin_capture(arena, stream, &scope));
            p.open[stream] = scope;
        }
        *which = at.first;
        return true;
    }
    return false;
}

void own(void *block, std::pair<int, pool_id> which) {
    const std::lock_guard<std::mutex> hold(lock);
    owners[block] = which;
    pools[which].tensors++;
    owned = owners.size();
}

bool is_owned(void *block) {
    const std::lock_guard<std::mutex> hold(lock);
    return owners.count(block) != 0;
}

/* The tensor is gone. */
void disown(void *block) {
    const std::lock_guard<std::mutex> hold(lock);
    auto at = owners.find(block);
    if (at == owners.end()) return;
    pools[at->second].tensors--;
    owners.erase(at);
    owned = owners.size();
    settle();
}

} /* namespace graphs */
extern "C" {

void gpupool_torch_begin_pool(int device, graphs::pool_id id, graphs::stream_filter captures) {
    const std::lock_guard<std::mutex> hold(graphs::lock);
    graphs::pool &p = graphs::pools[{device, id}];
    p.users++;
    p.captures = std::move(captures);
    graphs::opened++;
}

void gpupool_torch_end_pool(int device, graphs::pool_id id) {
    const std::lock_guard<std::mutex> hold(graphs::lock);
    graphs::pool &p = graphs::pools[{device, id}];
    graphs::opened--;
    p.captures = nullptr;
    for (; !p.open.empty(); p.open.erase(p.open.begin())) {
        MUST(gpupool_end_capture(p.open.begin()->second));
        p.closed.push_back(p.open.begin()->second);
    }
    graphs::settle();
}

void gpupool_torch_release_pool(int device, graphs::pool_id id) {
    const std::lock_guard<std::mutex> hold(graphs::lock);
    graphs::pools[{device, id}].users--;
    graphs::settle();
}

} /* extern "C" */
