/* What PyTorch calls when it runs on gpupool: the library that pytorch_allocator.py builds.

   torch.cuda.memory.CUDAPluggableAllocator calls these functions. They are C++, because only an
   exception refuses a tensor: PyTorch would make one of NULL. Beside what gpupool does, they know
   two things of a few tensors. Tensor.record_stream means the work that a stream has when the
   tensor dies, and gpupool_record_stream the work that the stream has at the call: so streams are
   noted until then. And tensors of a captured graph may outlive the graph, and the next graph of
   the same pool takes over its memory: so a pool has scopes of gpupool, one for each stream that
   captures, and they are released after the last graph and tensor. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

#include <atomic>
#include <c10/util/Exception.h>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#define MUST(call) TORCH_CHECK((call) == GPUPOOL_OK, "gpupool: ", gpupool_last_error())

namespace {

typedef std::pair<unsigned long long, unsigned long long> mempool_id; /* c10::MempoolId_t */
typedef std::function<bool(cudaStream_t)> stream_filter;

/* Of gpupool, on a stream that stands for the one that captures: nothing runs there. */
struct scope {
    cudaStream_t stream = nullptr;
    gpupool_capture *capture = nullptr;
};

struct pool {               /* of graphs that share memory, since no two of them run at one time */
    int users = 0;          /* captures and graphs */
    size_t tensors = 0;     /* that live in it */
    stream_filter captures; /* whether a stream captures for it */
    std::map<cudaStream_t, scope> scopes;
};

struct noted { /* a tensor with more to it than gpupool knows */
    std::set<cudaStream_t> lent;
    pool *graph = nullptr;
    cudaStream_t scope = nullptr; /* the stream of its scope */
};

struct late { /* a tensor that died lent to a stream that captures, where no use can be recorded */
    void *block;
    int device;
    cudaStream_t stream;
    noted has;
};

std::atomic<gpupool_arena *> arenas[64]; /* the devices' default arenas, once they are used */
std::mutex lock;
std::map<std::pair<int, mempool_id>, pool> pools; /* by device, too */
std::unordered_map<void *, noted> tensors;
std::vector<late> dead;
std::atomic<size_t> noted_count{0}, capture_count{0}; /* 0: nothing to look up, as mostly */

gpupool_arena *arena_of(int device) {
    TORCH_CHECK(device >= 0 && device < 64, "gpupool: no device " + std::to_string(device));
    gpupool_arena *arena = arenas[device];
    if (arena) return arena;
    arenas[device] = arena = gpupool_get_default_arena(device);
    MUST(arena ? GPUPOOL_OK : gpupool_last_result());
    return arena;
}

/* As PyTorch's own allocator writes a size. Numbers come to TORCH_CHECK as text: its own way is a
   C++ stream, which crashes where a compiler links libstdc++ into this library and PyTorch has
   another one. */
std::string words(double bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB"};
    int unit = bytes <= 1024 ? 0 : bytes <= 1 << 20 ? 1 : bytes <= 1 << 30 ? 2 : 3;
    char text[40];
    snprintf(text, sizeof text, "%.*f %s", unit ? 2 : 0, ldexp(bytes, -10 * unit), units[unit]);
    return text;
}

/* PyTorch's words, then gpupool's reason. More than any device has is a wrong argument to gpupool,
   and has no verdict. */
void refuse(size_t bytes, int device) {
    gpupool_result result = gpupool_last_result();
    std::string message = "CUDA out of memory. Tried to allocate " + words((double)bytes) + ". ";
    if (result == GPUPOOL_E_OUT_OF_MEMORY) {
        const gpupool_verdict *why = gpupool_last_verdict();
        message +=
            "GPU " + std::to_string(device) + " has a total capacity of " +
            words((double)why->device_total) + " of which " + words((double)why->device_free) +
            " is free. " + (why->limit ? words((double)why->limit) + " allowed; " : "") +
            "Of the allocated memory " + words((double)why->allocated) +
            " is allocated by PyTorch, and " + words((double)(why->reserved - why->allocated)) +
            " is reserved by PyTorch but unallocated. ";
    } else if (result != GPUPOOL_E_ARGUMENT) {
        MUST(result);
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false, message, gpupool_last_error());
}

/* Frees a tensor. What a graph has lent to another stream stays: each replay may use it there. */
gpupool_result end(void *block, int device, cudaStream_t stream, const noted &has) {
    gpupool_result result = GPUPOOL_OK;
    if (has.graph)
        return has.lent.empty() ? gpupool_free(arenas[device], block, has.scope) : GPUPOOL_OK;
    for (cudaStream_t other : has.lent)
        if (!result) result = gpupool_record_stream(arenas[device], block, other);
    return result ? result : gpupool_free(arenas[device], block, stream);
}

/* Releases what is nobody's any more. What cannot be, while another stream captures, is tried again
   later. */
void settle() {
    for (size_t i = dead.size(); i--;)
        if (end(dead[i].block, dead[i].device, dead[i].stream, dead[i].has) != GPUPOOL_E_CAPTURING)
            dead.erase(dead.begin() + (std::ptrdiff_t)i);
    for (auto at = pools.begin(); at != pools.end();) {
        auto &scopes = at->second.scopes;
        bool is_over = !at->second.users && !at->second.tensors;
        while (is_over && !scopes.empty()) {
            const scope last = scopes.begin()->second; /* empty, if it could not be made */
            if (last.capture && gpupool_release_capture(last.capture) != GPUPOOL_OK) break;
            if (last.stream) gpupool_retire_stream(last.stream);
            if (last.stream) cudaStreamDestroy(last.stream);
            scopes.erase(scopes.begin());
        }
        if (is_over && scopes.empty()) at = pools.erase(at);
        else ++at;
    }
}

/* The pool that a stream captures for; NULL: it captures for none. */
pool *capturing(int device, cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess)
        cudaGetLastError(); /* the default stream, beside another one's capture */
    if (status != cudaStreamCaptureStatusActive) return nullptr;
    for (auto &at : pools)
        if (at.first.first == device && at.second.captures && at.second.captures(stream))
            return &at.second;
    return nullptr;
}

/* The stream of a scope. If there is none, it is made in relaxed mode, or the capture would end. */
cudaStream_t enter(scope &s, gpupool_arena *arena) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t error = cudaSuccess;
    if (s.capture) return s.stream;
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (!s.stream) error = cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking);
    cudaThreadExchangeStreamCaptureMode(&mode);
    TORCH_CHECK(error == cudaSuccess, "gpupool: ", cudaGetErrorString(error));
    MUST(gpupool_begin_capture(arena, s.stream, &s.capture));
    return s.stream;
}

void *alloc_captured(gpupool_arena *arena, size_t bytes, int device, cudaStream_t stream) {
    const std::lock_guard<std::mutex> hold(lock);
    pool *graph = capturing(device, stream);
    if (graph) stream = enter(graph->scopes[stream], arena);
    void *block = gpupool_alloc(arena, bytes, stream);
    if (!block || !graph) return block;
    graph->tensors++;
    tensors[block].graph = graph;
    tensors[block].scope = stream;
    noted_count = tensors.size();
    return block;
}

noted forget(void *block) {
    noted found;
    if (!noted_count) return found;
    const std::lock_guard<std::mutex> hold(lock);
    auto node = tensors.extract(block);
    if (!node.empty()) found = node.mapped();
    noted_count = tensors.size();
    return found;
}

} // namespace
extern "C" {

void *gpupool_torch_alloc(size_t bytes, int device, cudaStream_t stream) {
    if (bytes == 0) return nullptr; /* an empty tensor's; to gpupool it is a mistake */
    gpupool_arena *arena = arena_of(device);
    void *block = capture_count ? alloc_captured(arena, bytes, device, stream)
                                : gpupool_alloc(arena, bytes, stream);
    if (!block) refuse(bytes, device);
    return block;
}

/* `stream` is the one of the allocation. Destructors call this, so there is nobody to throw at. In
   a forked child, a DataLoader's worker say, the memory is the parent's to free. */
void gpupool_torch_free(void *block, size_t, int device, cudaStream_t stream) {
    if (!block) return;
    noted has = forget(block);
    has.lent.erase(stream);
    gpupool_result result = end(block, device, stream, has);
    if (result && result != GPUPOOL_E_FORKED && result != GPUPOOL_E_CAPTURING)
        fprintf(stderr, "gpupool: %s\n", gpupool_last_error());
    if (!has.graph && result != GPUPOOL_E_CAPTURING) return;
    const std::lock_guard<std::mutex> hold(lock);
    if (has.graph) has.graph->tensors--;
    else dead.push_back({block, device, stream, has});
    settle();
}

void gpupool_torch_record_stream(void *block, cudaStream_t stream) {
    cudaPointerAttributes where = {};
    gpupool_block found;
    if (!block || cudaPointerGetAttributes(&where, block) != cudaSuccess || where.device < 0)
        return;
    gpupool_arena *arena = arenas[where.device];
    if (!arena || gpupool_get_block(arena, block, &found) != GPUPOOL_OK) return; /* not ours */
    const std::lock_guard<std::mutex> hold(lock);
    tensors[block].lent.insert(stream);
    noted_count = tensors.size();
}

/* torch.cuda.empty_cache() */
void gpupool_torch_empty_cache(void) {
    for (gpupool_arena *arena : arenas)
        if (arena) MUST(gpupool_trim(arena, 0));
}

/* torch.cuda.set_per_process_memory_fraction() */
void gpupool_torch_fraction(double fraction, int device) {
    char text[32];
    snprintf(text, sizeof text, "%.6f%%", fraction * 100);
    MUST(gpupool_set_limit_text(arena_of(device), text));
}

/* torch.cuda.memory_stats() and reset_peak_memory_stats(), by way of pytorch_allocator.py. Python
   calls them, so they throw nothing. */
gpupool_result gpupool_torch_stats(int device, gpupool_stats *stats) {
    return gpupool_get_stats(gpupool_get_default_arena(device), stats);
}
gpupool_result gpupool_torch_reset_peaks(int device) {
    return gpupool_reset_peaks(gpupool_get_default_arena(device));
}

/* A capture begins and ends; a graph is gone. */
void gpupool_torch_begin_pool(int device, mempool_id id, stream_filter captures) {
    const std::lock_guard<std::mutex> hold(lock);
    pool &p = pools[{device, id}];
    p.users++;
    p.captures = std::move(captures);
    capture_count++;
}

void gpupool_torch_end_pool(int device, mempool_id id) {
    const std::lock_guard<std::mutex> hold(lock);
    pool &p = pools[{device, id}];
    capture_count--;
    p.captures = nullptr;
    settle();
}

void gpupool_torch_release_pool(int device, mempool_id id) {
    const std::lock_guard<std::mutex> hold(lock);
    pools[{device, id}].users--;
    settle();
}

} /* extern "C" */
