/* facts: asks a real GPU and its driver what gpupool counts on. One line a fact: the question, how
   long the call took, the verdict. A verdict that is not the one seen before ends the program with
   status 1: gpupool, and the simulated GPU in tests/fakecuda, are then to be looked at. "new" is a
   fact that nobody has measured before. Runs for half a minute; nothing is of gpupool. */
#include "facts_calls.h"
#include "facts_captures.h"
#include "facts_waits.h"

static void start() {
    int version = 0;
    char name[128] = "";
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDeviceGetName(name, sizeof name, device));
    MUST(cuDriverGetVersion(&version));
    MUST(cuDevicePrimaryCtxRetain(&primary, device));
    MUST(cuCtxSetCurrent(primary));
    printf("%s, driver for CUDA %d.%d\n", name, version / 1000, version % 1000 / 10);
    make_gates();
    CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
    warm_up(stream);
    MUST(cuStreamDestroy(stream));
}

int main() {
    start_watch(60);
    start();
    ask_about_captures();
    ask_about_waits();
    ask_about_calls();
    printf("%d facts as before, %d new, %d changed, %d skipped\n", facts_known, facts_new,
           facts_changed, facts_skipped);
    return facts_changed != 0;
}
