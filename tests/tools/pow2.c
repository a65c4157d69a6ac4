/* A complete binary tree over a range of units, as a heap: node 1 is the whole range, and nodes
   2 i and 2 i + 1 are the halves of node i. used[i] is the order of the node's range less the
   order of the largest free block in it: 0 where all is free, order + 1 where nothing is. So an
   untouched range is all zero, and calloc gives it for nothing. */
#include "pow2.h"

#include <stdlib.h>

#define GRANULE_ORDER 12 /* 2 MiB in units of 512 bytes */

typedef struct buddy {
    uint8_t *used;
    unsigned order;    /* of the whole range, in units */
    size_t *at;        /* by slot: the node of its block */
    uint8_t *touched;  /* by granule */
    uint64_t granules; /* how many are touched */
} buddy;

static int largest(const buddy *b, size_t node, unsigned order) {
    return (int)order - b->used[node];
}

static void touch(buddy *b, uint64_t unit, unsigned order) {
    uint64_t end = (unit + ((uint64_t)1 << order) - 1) >> GRANULE_ORDER;
    for (uint64_t g = unit >> GRANULE_ORDER; g <= end; g++) {
        b->granules += !b->touched[g];
        b->touched[g] = 1;
    }
}

/* Makes the parents of a node of that order agree with their halves again. */
static void update(buddy *b, size_t node, unsigned order) {
    while (node > 1) {
        node /= 2;
        int left = largest(b, node * 2, order), right = largest(b, node * 2 + 1, order);
        int both_free = left == (int)order && right == (int)order;
        int best = left > right ? left : right;
        order++;
        b->used[node] = both_free ? 0 : (uint8_t)((int)order - best);
    }
}

/* The lowest free block of the order; 0 where there is none. */
static size_t take(buddy *b, unsigned wanted) {
    size_t node = 1;
    uint64_t unit = 0;
    if (largest(b, 1, b->order) < (int)wanted) return 0;
    for (unsigned order = b->order; order > wanted;) {
        node *= 2;
        order--;
        if (largest(b, node, order) >= (int)wanted) continue;
        node++;
        unit += (uint64_t)1 << order;
    }
    b->used[node] = (uint8_t)(wanted + 1);
    update(b, node, wanted);
    touch(b, unit, wanted);
    return node;
}

static void give(buddy *b, size_t node) {
    unsigned order = b->order;
    for (size_t n = node; n > 1; n /= 2) order--;
    b->used[node] = 0;
    update(b, node, order);
}

static unsigned order_of(uint64_t bytes) {
    unsigned order = 0;
    while ((POW2_UNIT_BYTES << order) < bytes) order++;
    return order;
}

static uint64_t run(buddy *b, const trace *t) {
    for (size_t i = 0; i < t->events; i++) {
        const trace_event *e = &t->event[i];
        if (e->kind != TRACE_BLOCK) continue;
        if (!e->bytes) {
            give(b, b->at[e->slot]);
            continue;
        }
        b->at[e->slot] = take(b, order_of(e->bytes));
        if (!b->at[e->slot]) return 0;
    }
    return b->granules * POW2_GRANULE_BYTES;
}

uint64_t pow2_reserved_bytes(const trace *t) {
    buddy b = {.order = order_of(t->peak_live_bytes) + 2};
    if (b.order <= GRANULE_ORDER) b.order = GRANULE_ORDER + 1;
    b.used = calloc((size_t)2 << b.order, 1);
    b.at = calloc(t->slots, sizeof *b.at);
    b.touched = calloc((size_t)1 << (b.order - GRANULE_ORDER), 1);
    uint64_t bytes = b.used && b.at && b.touched ? run(&b, t) : 0;
    free(b.used);
    free(b.at);
    free(b.touched);
    return bytes;
}
