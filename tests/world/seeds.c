/* world FIRST LAST [OPERATIONS]    runs these seeds
   world shrink SEED OPERATIONS     finds the shortest part of a seed that still fails
   world bytes HEX                  runs what that has found */
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

/* How a world ends in a process of its own, since it may crash or hang: 0 is well, and each text
   has a number, which its figures do not change. */
static int outcome(const operation *ops, long count) {
    int status;
    pid_t child = fork();
    if (!child) {
        const char *wrong;
        unsigned sum = 0;
        alarm(20);
        if (!freopen("/dev/null", "w", stderr)) _exit(0);
        for (wrong = world_run(ops, count); *wrong; wrong++)
            if (*wrong > '9' && *wrong < 'g') sum = sum * 31 + (unsigned char)*wrong;
        _exit(sum ? 1 + (int)(sum % 255) : 0);
    }
    waitpid(child, &status, 0);
    return status;
}

static void shrink(uint64_t seed, long count) {
    operation *ops = of_seed(seed, count), *less = malloc((size_t)count * sizeof *less);
    int wanted = outcome(ops, count);
    long i, part;
    for (part = count / 2; part; part /= 2)
        for (i = 1; i < count;) {
            long gone = i + part > count ? count - i : part;
            memcpy(less, ops, (size_t)i * sizeof *ops);
            memcpy(less + i, ops + i + gone, (size_t)(count - i - gone) * sizeof *ops);
            if (outcome(less, count - gone) == wanted) {
                count -= gone;
                memcpy(ops, less, (size_t)count * sizeof *ops);
            } else i += gone;
        }
    printf("%ld operations: world bytes ", count);
    for (i = 0; i < count * 8; i++) printf("%02x", ((unsigned char *)ops)[i]);
    puts("");
    free(ops);
    free(less);
}

static int run_bytes(const char *hex) {
    long i, count = (long)strlen(hex) / 16;
    operation *ops = calloc((size_t)count, sizeof *ops);
    const char *wrong;
    for (i = 0; i < count * 8; i++) {
        char two[3] = {hex[2 * i], hex[2 * i + 1], 0};
        ((unsigned char *)ops)[i] = (unsigned char)strtoul(two, NULL, 16);
    }
    wrong = world_run(ops, count);
    free(ops);
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
