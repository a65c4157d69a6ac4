/* world FIRST LAST [OPERATIONS]         runs these seeds
   world shrink SEED OPERATIONS > FILE   finds the shortest part of a seed that still fails
   world bytes FILE                      runs what that, or libFuzzer, has found */
#include "world.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static operation *of_seed(uint64_t seed, long count) {
    operation *ops = malloc((size_t)count * sizeof *ops);
    long i;
    for (i = 0; ops && i < count; i++) ops[i] = world_operation_of(seed, i);
    return ops;
}

static const char *run(uint64_t seed, long count) {
    operation *ops = of_seed(seed, count);
    const char *wrong = world_run(ops, count);
    free(ops);
    return wrong;
}

/* Whether it fails, in a process of its own, since it may crash or hang. */
static int fails(const operation *ops, long count) {
    int status;
    pid_t child = fork();
    if (!child) {
        alarm(20);
        if (!freopen("/dev/null", "w", stderr)) _exit(0);
        _exit(*world_run(ops, count) != 0);
    }
    waitpid(child, &status, 0);
    return status != 0;
}

static void shrink(uint64_t seed, long count) {
    operation *ops = of_seed(seed, count), *less = malloc((size_t)count * sizeof *less);
    long i, part;
    for (part = count / 2; part; part /= 2)
        for (i = 1; i < count;) {
            long gone = i + part > count ? count - i : part;
            memcpy(less, ops, (size_t)i * sizeof *ops);
            memcpy(less + i, ops + i + gone, (size_t)(count - i - gone) * sizeof *ops);
            if (fails(less, count - gone)) {
                count -= gone;
                memcpy(ops, less, (size_t)count * sizeof *ops);
            } else i += gone;
        }
    fprintf(stderr, "%ld operations\n", count);
    fwrite(ops, sizeof *ops, (size_t)count, stdout);
    free(ops);
    free(less);
}

static int run_bytes(const char *path) {
    static operation ops[1 << 16];
    FILE *file = fopen(path, "rb");
    const char *wrong = "the file cannot be opened";
    if (file) {
        wrong = world_run(ops, (long)fread(ops, sizeof *ops, 1 << 16, file));
        fclose(file);
    }
    return puts(*wrong ? wrong : "world: nothing is wrong") < 0 || *wrong;
}

int main(int count, char **words) {
    static const driver seeds = {"world", 40, 4000, run};
    if (count > 3 && !strcmp(words[1], "shrink")) {
        shrink(strtoull(words[2], NULL, 10), atol(words[3]));
        return 0;
    }
    if (count > 2 && !strcmp(words[1], "bytes")) return run_bytes(words[2]);
    return world_drive(&seeds, count, words);
}
