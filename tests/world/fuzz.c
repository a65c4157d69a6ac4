/* libFuzzer's bytes as a world. */
#include "world.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const operation *bytes, size_t size);

int LLVMFuzzerTestOneInput(const operation *bytes, size_t size) {
    const char *wrong = world_run(bytes, (long)(size / sizeof *bytes));
    if (!*wrong) return 0;
    fprintf(stderr, "%s\n", wrong);
    abort();
}
