/* TREE by enumeration: every state of a small chunk and every call in it, against the naive model.
   A state is the sequence of its runs, each a block or free in a list. It is made anew in the tree
   for each call, and what the call leaves is compared whole. The search is breadth-first from one
   free run, so it meets what calls can reach; that must be every state there is. */
// build: plain -O2
// build: asan -fsanitize=address -DFEW_UNITS=6
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "tree_calls.h"

#ifndef FEW_UNITS
#define FEW_UNITS 8
#endif

static struct {
    unsigned char seen[((size_t)1 << (3 * FEW_UNITS)) / 8]; /* a bit for each possible state */
    tree_code *states;
    uint64_t count, room;
} queue;

/* Three bits a unit do for a state, where no run of a list meets another of the same. */
static void enqueue(const model *m) {
    size_t bit = 0;
    for (int unit = 0; unit < m->units; unit++) {
        size_t kind = m->owner[unit];
        if (kind >= BLOCK) kind = kind == (size_t)(BLOCK + unit) ? 6 : 7;
        bit = bit << 3 | kind;
    }
    if (queue.seen[bit / 8] >> (bit % 8) & 1) return;
    queue.seen[bit / 8] |= (unsigned char)(1u << (bit % 8));
    if (CHECK(queue.count < queue.room)) queue.states[queue.count++] = model_code(m);
}

static void search(model *m, const char *lists) {
    memset(&queue, 0, sizeof queue);
    queue.room = model_states(m);
    queue.states = (tree_code *)malloc(queue.room * sizeof *queue.states);
    states = calls = 0;
    arrived = enqueue;
    tree_open(m);
    enqueue(m);
    for (uint64_t i = 0; i < queue.count; i++) {
        model_decode(m, queue.states[i]);
        visit(m);
    }
    CHECK_EQ(states, queue.room);
    tree_close();
    free(queue.states);
    report(m, lists, "");
}

static void every_state_with_two_streams(void) {
    model m = {.units = FEW_UNITS, .list_count = 3,
               .list = {GPI_LIST_ANY, FIRST, SECOND}};
    search(&m, "anybody's memory, two streams");
}

/* One stream, with frees before and after its mark: known to be finished before, or not. */
static void every_state_with_two_positions(void) {
    model m = {.units = FEW_UNITS - 1, .list_count = 3,
               .list = {GPI_LIST_ANY, FIRST, LATE}};
    search(&m, "anybody's memory, one stream with a mark");
    m.is_passed = 1;
    search(&m, "anybody's memory, one stream with a mark that has passed");
}

static void every_state_with_bare_addresses(void) {
    model m = {.units = FEW_UNITS - 1, .list_count = 3,
               .list = {GPI_LIST_ANY, GPI_LIST_EMPTY, FIRST}};
    search(&m, "anybody's memory, bare addresses, one stream");
}

/* The second granule, of which the chunk has all units, is a slab. */
static void every_state_with_a_slab(void) {
    model m = {.units = FEW_UNITS, .list_count = 2, .list = {GPI_LIST_ANY, FIRST}};
    for (int unit = 0; unit < m.units; unit++) m.slab[unit] = tree_granule(unit) == 1;
    search(&m, "anybody's memory, one stream, a slab");
}

int main(void) {
    TEST(every_state_with_two_streams);
    TEST(every_state_with_two_positions);
    TEST(every_state_with_bare_addresses);
    TEST(every_state_with_a_slab);
    return check_finish();
}
