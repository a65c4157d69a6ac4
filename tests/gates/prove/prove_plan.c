/* PLAN: what a plan takes, for arenas of three chunks of up to three granules of 4 units, with any
   units free at the start and at the end of each, and blocks of fewer than 32 units. How much of a
   chunk is free is given here; test_plan has arenas where the tree tells it. */
// rooms: GROUND HOST DRIVER LEDGER TREE SEARCH CACHE CLOCK EVENT CHECK CHUNK GROWTH STITCH PLAN
// unwind: 5
// as: s/gpi_plan_free_at_start(stitches->tree, chunk)/free_at_start(chunk)/
// as: s/gpi_plan_free_at_end(stitches->tree, chunk)/free_at_end(chunk)/
// as: s/qsort(/sort(/
#include <stddef.h>
#include <stdint.h>
struct gpi_chunk;
static uint64_t free_at_start(const struct gpi_chunk *chunk);
static uint64_t free_at_end(const struct gpi_chunk *chunk);
static void sort(void *list, size_t count, size_t bytes,
                 int (*compare)(const void *, const void *));
#include "prove.h"

#define CHUNKS 3
#define GRANULE 4

static gpi_chunk chunk[CHUNKS];
static gpi_chunks chunks;
static gpi_stitches stitches;
static gpi_free_chunk room[CHUNKS];
static gpi_plan plan;

/* Fields that planning does not look at say how much of a chunk is free. */
static uint64_t free_at_start(const gpi_chunk *of) { return of->exports; }
static uint64_t free_at_end(const gpi_chunk *of) { return of->stuck_units; }

/* The chunks here are in the order that the plan sorts them into: the largest first. */
static void sort(void *list, size_t count, size_t bytes,
                 int (*compare)(const void *, const void *)) {
    CLAIM(list == room && bytes == sizeof *room && count <= CHUNKS && compare != NULL);
}

/* Chunks of which any units are used: at least one of each, or none. */
static void any_chunks(void) {
    int i;
    for (i = 0; i < CHUNKS; i++) {
        gpi_chunk *at = &chunk[i];
        at->unit = 64 * (uint64_t)i;
        at->units = GRANULE * (1 + any_below(3));
        at->exports = any_below(16);
        at->stuck_units = any_below(16);
        ASSUME((at->exports == at->units && at->stuck_units == at->units) ||
               at->exports + at->stuck_units < at->units);
        ASSUME(i == 0 || at->units <= at[-1].units);
        at->next = i + 1 < CHUNKS ? at + 1 : NULL;
        chunks.units += at->units;
    }
    chunks.first = chunk;
    chunks.count = CHUNKS;
    chunks.granule_units = GRANULE;
    stitches.chunks = &chunks;
    stitches.candidates = room;
    stitches.candidates_room = CHUNKS;
}

static int is_wholly_free(const gpi_chunk *of) { return free_at_start(of) == of->units; }

// broken: s/if (chunk.units <= units) {/if (chunk.units <= units + 1) {/
void prove_whole_chunks_are_chosen_while_they_fit(void) {
    uint64_t units = any_below(32), count = any_below(CHUNKS + 1), left, i, chosen = 0;
    gpi_free_chunk spare;
    any_chunks();
    for (i = 0; i < CHUNKS; i++) {
        room[i].chunk = &chunk[i];
        room[i].units = chunk[i].units;
    }
    plan.whole = room;
    left = gpi_plan_choose(&plan, count, units, &spare);
    for (i = 0; i < plan.whole_count; i++) {
        CLAIM(room[i].units == room[i].chunk->units);
        CLAIM(i == 0 || room[i - 1].chunk < room[i].chunk); /* each once */
        CLAIM(room[i].chunk != spare.chunk);
        chosen += room[i].units;
    }
    CLAIM(chosen + left == units && plan.whole_count <= count);
    CLAIM((spare.chunk == NULL) == (plan.whole_count == count));
    CLAIM(!spare.chunk || (left < spare.units && spare.units == spare.chunk->units));
}

// broken: s/if (!head->units || !tail->units || head->chunk != tail->chunk) return;/return;/
void prove_head_and_tail_are_the_most_that_two_chunks_have(void) {
    gpi_measure measure;
    gpi_free_chunk head, tail;
    any_chunks();
    gpi_plan_look(&stitches, NULL, &measure);
    gpi_plan_ends(&measure, &head, &tail);
    CLAIM(!head.units || head.units == free_at_end(head.chunk));
    CLAIM(!tail.units || tail.units == free_at_start(tail.chunk));
    CLAIM(!head.units || !tail.units || head.chunk != tail.chunk);
    if (!is_wholly_free(&chunk[0]) && !is_wholly_free(&chunk[2]))
        CLAIM(head.units + tail.units >= free_at_end(&chunk[0]) + free_at_start(&chunk[2]));
}

// broken: s/if (rest > tail_units)/if (rest > tail_units + 1)/
void prove_the_rest_is_of_two_ends_and_of_new_memory(void) {
    uint64_t rest = any_below(32);
    gpi_free_chunk spare;
    gpi_chunk *head = &chunk[0], *tail = &chunk[1];
    any_chunks();
    plan.align_units = any() & 1 ? 1 : 2;
    plan.head.chunk = head;
    plan.head.units = plan.align_units > 1 || is_wholly_free(head) ? 0 : free_at_end(head);
    plan.tail.chunk = tail;
    plan.tail.units = is_wholly_free(tail) ? 0 : free_at_start(tail);
    spare.chunk = any() & 1 ? &chunk[2] : NULL;
    spare.units = chunk[2].units;
    ASSUME(!spare.chunk || (is_wholly_free(&chunk[2]) && rest < spare.units));
    gpi_plan_rest(&stitches, &plan, rest, &spare);
    CLAIM(plan.head.units + plan.new_units + plan.tail.units == rest);
    CLAIM(!plan.head.units || plan.head.units <= free_at_end(plan.head.chunk));
    CLAIM(!plan.tail.units || plan.tail.units <= free_at_start(plan.tail.chunk));
    CLAIM(!plan.head.units || !plan.tail.units || plan.head.chunk != plan.tail.chunk);
    CLAIM(!plan.tail.units || plan.new_units % GRANULE == 0);
    CLAIM(!plan.new_units || !spare.chunk);
}
