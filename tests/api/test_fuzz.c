/* What fuzzers found to be worth keeping, once more: every file of gates/fuzz/corpus/NAME through
   the harness of that name, without a fuzzer. `make fuzz` looks for more. */
// build: plain
// build: asan -fsanitize=address,undefined
// and: tests/support/trace.c tests/support/trace_build.c
// and: tests/support/lines.c tests/support/idmap.c
#if defined(GPUPOOL_TEST_GPU) && GPUPOOL_TEST_GPU
#include "gpupool.h"
#include "check.h"

int main(void) {
    check_skip("corpus", "needs fakecuda's controls");
    return check_finish();
}
#else
#include "../gates/fuzz/fuzz_all.h"

#include <dirent.h>

#define CORPUS "tests/gates/fuzz/corpus/" /* tests run where the Makefile is */

static int feed(const fuzz_harness *harness, const char *path) {
    static uint8_t data[1 << 16];
    FILE *file = fopen(path, "rb");
    size_t size = 0;
    int good = file != NULL;
    if (good) {
        size = fread(data, 1, sizeof data, file);
        fclose(file);
        good = harness->run(data, size);
    }
    if (!good) printf("%s: goes wrong in the harness %s\n", path, harness->name);
    return good;
}

static void feed_all(const fuzz_harness *harness) {
    char path[512];
    long files = 0, bad = 0;
    DIR *folder;
    snprintf(path, sizeof path, CORPUS "%s", harness->name);
    folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, CORPUS "%s/%s", harness->name, entry->d_name);
        files++;
        bad += !feed(harness, path);
    }
    if (folder) closedir(folder);
    printf("%s: %ld inputs, %ld go wrong\n", harness->name, files, bad);
    if (files && !bad) check_passed++;
    else check_failed++;
}

int main(void) {
    if (!freopen("/dev/null", "w", stderr)) return EXIT_FAILURE; /* what the trace reader refuses */
    for (size_t i = 0; i < KIT_COUNT(fuzz_harnesses); i++) feed_all(&fuzz_harnesses[i]);
    return check_finish();
}
#endif
