/* The harness that FUZZ names, for libFuzzer: see fuzz.h. */
#include "fuzz_all.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (size_t i = 0; i < KIT_COUNT(fuzz_harnesses); i++)
        if (!strcmp(fuzz_harnesses[i].name, FUZZ) && !fuzz_harnesses[i].run(data, size)) abort();
    return 0;
}
