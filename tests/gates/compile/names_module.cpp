/* A C++20 module whose interface is made of CUDA's names. */
module;
#include "names.h"
export module names;

export template <class T> T *fresh(size_t count) {
    void *made = nullptr;
    return cudaMalloc(&made, count * sizeof(T)) == cudaSuccess ? static_cast<T *>(made) : nullptr;
}
#if !defined(__clang__) || __clang_major__ > 14 /* which loses templates that are called so */
export template <class T> T *fresh_typed(size_t count) {
    T *made = nullptr;
    return cudaMalloc(&made, count * sizeof(T)) == cudaSuccess ? made : nullptr;
}
#else
export template <class T> T *fresh_typed(size_t count) { return fresh<T>(count); }
#endif
export inline bool gone(void *block) { return cudaFreeAsync(block, nullptr) == cudaSuccess; }
export inline bool gone_from(gpupool_arena *arena, void *block) {
    return gpupool_free(arena, block, nullptr) == GPUPOOL_OK;
}
export struct held {
    blocks some;
    async_blocks more;
    streams stream;
    explicit held(size_t bytes) : some(bytes), more(bytes) {}
    bool whole() const { return some.block && more.block && stream.stream; }
};
export bool is_whole(const async_blocks &some) { return some.block != nullptr; }
