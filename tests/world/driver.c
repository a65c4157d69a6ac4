/* What the drivers have in common: operations from seeds, and a line that repeats a failure. */
#include "world.h"

#include <stdlib.h>
#include <string.h>

operation world_operation_of(uint64_t seed, long index) {
    uint64_t x = seed * 0x9e3779b97f4a7c15ull + (uint64_t)index * 0xd1342543de82ef95ull;
    operation op;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    memcpy(&op, &x, sizeof op);
    return op;
}

int world_drive(const driver *d, int count, char **words) {
    uint64_t seed = count > 1 ? strtoull(words[1], NULL, 10) : 1;
    uint64_t last = count > 2 ? strtoull(words[2], NULL, 10) : count > 1 ? seed : d->last;
    long passed = 0, operations = count > 3 ? atol(words[3]) : d->operations;
    const char *wrong = "";
    for (; seed <= last && !*wrong; seed++) {
        wrong = d->run(seed, operations);
        if (!*wrong) passed++;
        else
            printf("%s\nrepeat: %s %llu %llu %ld\n", wrong, d->name, (unsigned long long)seed,
                   (unsigned long long)seed, operations);
    }
    printf("%ld passed, %d failed\n", passed, *wrong != 0);
    return *wrong != 0;
}
