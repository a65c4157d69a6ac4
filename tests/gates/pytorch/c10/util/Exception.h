/* What examples/pytorch_allocator.cpp takes from PyTorch: its exceptions. */
#ifndef PYTORCH_EXCEPTION_H
#define PYTORCH_EXCEPTION_H

#include <sstream>
#include <stdexcept>

namespace c10 {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};
struct OutOfMemoryError : Error {
    using Error::Error;
};

template <class... Words> std::string sentence(const Words &...words) {
    std::ostringstream out;
    (void)std::initializer_list<int>{(out << words, 0)...};
    return out.str();
}

} // namespace c10

#define TORCH_CHECK_WITH(kind, truth, ...)                            \
    do {                                                              \
        if (!(truth)) throw c10::kind(c10::sentence(__VA_ARGS__));    \
    } while (0)
#define TORCH_CHECK(truth, ...) TORCH_CHECK_WITH(Error, truth, __VA_ARGS__)

#endif
