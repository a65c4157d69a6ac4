/* The world on a real GPU: what it asks of fakecuda is done by kernels that stamp and verify. What
   only a simulated GPU can do (faults, steps, intruders inside a call) is left out. */
#include "fakecuda.h"

static long *wrong; /* host memory that kernels count in */
static char text[200];

__global__ void fill(char *to, size_t bytes, char byte) {
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = byte;
}
__global__ void verify(const char *from, size_t bytes, int byte, long *wrong) {
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x)
        if (byte >= 0 && from[i] != (char)byte) atomicAdd_system((unsigned long long *)wrong, 1ull);
}

/* Captures of the world go on over what is called between these. */
struct relaxed {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    relaxed() {
        cudaThreadExchangeStreamCaptureMode(&mode);
    }
    ~relaxed() {
        cudaThreadExchangeStreamCaptureMode(&mode);
    }
};

static long *counter() {
    if (!wrong) {
        relaxed mode;
        cudaHostAlloc(&wrong, sizeof *wrong, cudaHostAllocDefault);
        *wrong = 0;
    }
    return wrong;
}

static cudaError_t failed;

static cudaError_t launched() {
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) failed = error;
    return error;
}

extern "C" {

cudaError_t fake_write(cudaStream_t stream, const char *, void *to, size_t bytes, int byte) {
    cudaGetLastError(); /* the world makes calls that must fail */
    fill<<<1, 256, 0, stream>>>((char *)to, bytes, (char)byte);
    return launched();
}
cudaError_t fake_read(cudaStream_t stream, const char *, const void *from, size_t bytes, int byte) {
    cudaGetLastError();
    verify<<<1, 256, 0, stream>>>((const char *)from, bytes, byte, counter());
    return launched();
}
void fake_host_access(const void *address, size_t bytes, int, const char *) {
    cudaPointerAttributes what;
    if (cudaPointerGetAttributes(&what, address) != cudaSuccess) failed = cudaGetLastError();
    for (size_t i = 0; i < bytes && what.type != cudaMemoryTypeDevice; i += 4096)
        (void)((const volatile char *)address)[i];
}

/* Waits for the device; unlike cudaDeviceSynchronize it ends no capture. */
int fake_run_all(void) {
    relaxed mode;
    void *byte = nullptr;
    cudaHostAlloc(&byte, 1, cudaHostAllocDefault);
    cudaFreeHost(byte);
    return 0;
}
int fake_run(cudaStream_t) {
    return fake_run_all();
}

long fake_failures(void) {
    if (failed)
        snprintf(text, sizeof text, "a kernel cannot start: %s", cudaGetErrorString(failed));
    else snprintf(text, sizeof text, "%ld bytes are not what was written", *counter());
    return *counter() || failed;
}
const char *fake_failure_text(void) {
    return text;
}
void fake_clear_failures(void) {
    *counter() = 0;
}

/* Nobody knows: others use the device too. */
size_t fake_used_bytes(int) {
    return SIZE_MAX;
}
size_t fake_pinned_bytes(void) {
    return SIZE_MAX;
}
const char *fake_misuse_text(void) {
    return "";
}

/* What only a simulated GPU does: here it does nothing, and says that there is nothing. */
#define NOTHING(type, name, ...) \
    type name(__VA_ARGS__) { \
        return type(); \
    }
NOTHING(int, fake_step, cudaStream_t)
NOTHING(long, fake_misuses, void)
NOTHING(void, fake_mode, fake_run_mode)
NOTHING(void, fake_fail_resource, long)
NOTHING(void, fake_break, long)
NOTHING(int, fake_is_broken, void)
NOTHING(void, fake_fail_pause, int)
NOTHING(void, fake_fail_clear, void)
NOTHING(long, fake_fail_fired, void)
NOTHING(void, fake_before_call, const char *, long, void (*)(void *), void *)
NOTHING(void, fake_quiet, int)
NOTHING(long, fake_reset, void)
NOTHING(long, fake_live_objects, void)
NOTHING(void, fake_device_memory, int, size_t)
NOTHING(void, fake_pinned_limit, size_t)
}
