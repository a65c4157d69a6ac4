/* Vector clocks. A slot stands for one stream; entry s is how much of stream s came before. */
#include "fk.h"

#include <stdlib.h>
#include <string.h>

uint64_t fk_clock_get(const fk_clock *clock, uint32_t slot) {
    return slot < clock->n ? clock->tick[slot] : 0;
}

static void fk_clock_reach(fk_clock *clock, uint32_t n) {
    if (clock->n >= n) return;
    clock->tick = fk_grow(clock->tick, n, sizeof *clock->tick);
    memset(clock->tick + clock->n, 0, (n - clock->n) * sizeof *clock->tick);
    clock->n = n;
}

void fk_clock_set(fk_clock *clock, uint32_t slot, uint64_t tick) {
    fk_clock_reach(clock, slot + 1);
    clock->tick[slot] = tick;
}

void fk_clock_join(fk_clock *into, const fk_clock *from) {
    uint32_t i;
    fk_clock_reach(into, from->n);
    for (i = 0; i < from->n; i++)
        if (from->tick[i] > into->tick[i]) into->tick[i] = from->tick[i];
}

void fk_clock_copy(fk_clock *into, const fk_clock *from) {
    uint32_t i;
    for (i = 0; i < into->n; i++) into->tick[i] = 0;
    fk_clock_join(into, from);
}

int fk_clock_covers(const fk_clock *big, const fk_clock *small) {
    uint32_t i;
    for (i = 0; i < small->n; i++)
        if (small->tick[i] > fk_clock_get(big, i)) return 0;
    return 1;
}

void fk_clock_drop(fk_clock *clock) {
    free(clock->tick);
    clock->tick = NULL;
    clock->n = 0;
}
