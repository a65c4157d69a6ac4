// build: plain -O1
/* The plan of a stitch, for three chunks in every state: of one to three granules, free from the
   start on by nothing, a unit, half or all, for anybody, the request's stream or another one. A
   plan exists when any choice of chunks would do, and it takes whole chunks but for one. */
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"

enum { CHUNKS = 3, GRANULES = 3 * CHUNKS };

typedef enum owner { ANY, OWN, OTHER, OWNERS } owner;
enum { NOTHING, UNIT, HALF, WHOLE, PARTS };

static gpupool_arena arena;
static gpi_stream streams[2]; /* the request's; another one, whose mark covers its frees */
static gpi_chunk chunks[CHUNKS];
static gpi_chunk *all[CHUNKS];
static uint64_t parts_free[CHUNKS], usable[CHUNKS]; /* of each chunk, as the test knows it */
static long plans;

static void open_records(void) {
    gpi_buddy *buddy = &arena.buddy;
    CHECK(gpi_region_open(&buddy->region, 64 << 20) && gpi_region_ensure(&buddy->region, 1 << 20));
    buddy->granules = GRANULES + 1;
    buddy->cells = (gpi_cell *)gpi_region_get(&buddy->region, (GRANULES + 1) * sizeof(gpi_cell));
    buddy->starts = (uint64_t *)gpi_region_get(&buddy->region, sizeof(uint64_t));
    arena.chunks.all = all;
    arena.chunks.count = CHUNKS;
    streams[0].kind = streams[1].kind = GPI_ORDINARY;
    streams[1].event = (CUevent)(void *)&streams[1];
    streams[1].mark_at = streams[1].issued = 1;
}

static void empty_list(gpi_list *list, gpi_stream *stream) {
    memset(list, 0, sizeof *list);
    list->stream = stream;
}

/* Chunks side by side, each free up to its part and held from there on. */
static void lay_out(const int *granules, const int *parts, const int *owners) {
    gpi_buddy *buddy = &arena.buddy;
    gpi_run *run, *first[CHUNKS];
    uint64_t used = buddy->region.used, unit = 0;
    int i, k;
    buddy->spare = NULL;
    memset(buddy->cells, 0, (GRANULES + 1) * sizeof(gpi_cell));
    *buddy->starts = 0;
    empty_list(&buddy->any, NULL);
    for (i = 0; i < 2; i++) empty_list(&streams[i].list, &streams[i]);
    run = gpi_region_get(&buddy->region, sizeof *run);
    memset(run, 0, sizeof *run);
    run->units = GRANULES * GPI_GRANULE;
    gpi_buddy_enter(buddy, run);
    for (i = 0; i < CHUNKS; i++) {
        uint64_t units = (uint64_t)granules[i] * GPI_GRANULE;
        uint64_t part = parts[i] == WHOLE ? units : parts[i] == HALF ? units / 2 : parts[i] == UNIT;
        chunks[i].unit = unit;
        chunks[i].units = units;
        parts_free[i] = part;
        if (unit) run = gpi_buddy_split(buddy, run, unit);
        first[i] = part ? run : NULL;
        if (part && part < units) run = gpi_buddy_split(buddy, run, unit + part);
        unit += units;
    }
    if (unit < GRANULES * GPI_GRANULE) gpi_buddy_split(buddy, run, unit);
    for (k = 0; k < 2; k++) /* list ANY last, or a stream's run would take it in */
        for (i = 0; i < CHUNKS; i++)
            if (first[i] && (owners[i] == ANY) == k)
                gpi_buddy_put(buddy, first[i], GPI_FREE,
                              owners[i] == ANY ? &buddy->any : &streams[owners[i] - OWN].list, 1);
    buddy->region.used = used;     /* the next state takes the same records */
    for (i = 0; i < CHUNKS; i++) { /* the largest first */
        for (k = i; k && all[k - 1]->units < chunks[i].units; k--) all[k] = all[k - 1];
        all[k] = &chunks[i];
    }
}

/* Whether some whole chunks, and the start of one more, have so many units. */
static int has_choice(uint64_t units) {
    for (int set = 0; set < 1 << CHUNKS; set++) {
        uint64_t sum = 0, longest = 0;
        int is_whole = 1;
        for (int i = 0; i < CHUNKS; i++) {
            if (set >> i & 1) {
                is_whole &= usable[i] == chunks[i].units;
                sum += chunks[i].units;
            } else longest = gpi_max(longest, usable[i]);
        }
        if (is_whole && sum <= units && units - sum <= longest) return 1;
        if (is_whole && sum == units) return 1;
    }
    return 0;
}

static void check_plan(const gpi_ask *ask) {
    uint64_t rest = ask->units, count = 0;
    gpi_plan plan;
    gpi_stitch_plan(ask, &plan);
    plans++;
    for (int i = 0; i < CHUNKS; i++) {
        CHECK_EQ(chunks[i].usable, usable[i]);
        if (!chunks[i].is_chosen) continue;
        CHECK_EQ(usable[i], chunks[i].units); /* M1: whole */
        rest -= chunks[i].units;
        count++;
    }
    CHECK(rest <= ask->units);
    CHECK_EQ(plan.missing == 0, has_choice(ask->units));
    if (plan.missing) CHECK_EQ(plan.missing, rest);
    if (plan.last) {
        CHECK(!plan.last->is_chosen && rest > 0 && plan.last->usable >= rest);
        for (int i = 0; i < CHUNKS; i++) /* the shortest that will do */
            CHECK(chunks[i].is_chosen || usable[i] < rest || usable[i] >= plan.last->usable);
    }
    CHECK_EQ(plan.count, count + (plan.last != NULL));
}

static void plan_each(const int *granules, const int *parts, const int *owners) {
    static const uint64_t extra[] = {0, 1, GPI_GRANULE / 2, GPI_GRANULE - 1};
    gpi_ask ask;
    memset(&ask, 0, sizeof ask);
    ask.arena = &arena;
    ask.owner = &streams[0];
    ask.alignment = GPI_UNIT;
    ask.takes_own = 1;
    lay_out(granules, parts, owners);
    for (ask.takes_others = 0; ask.takes_others < 2; ask.takes_others++) {
        for (int i = 0; i < CHUNKS; i++)
            usable[i] = owners[i] == OTHER && !ask.takes_others ? 0 : parts_free[i];
        for (uint64_t n = 1; n < 28; n++) {
            ask.units = n / 4 * GPI_GRANULE + extra[n % 4];
            check_plan(&ask);
        }
    }
}

static int digit(int *number, int base) {
    int value = *number % base;
    *number /= base;
    return value;
}

static void every_state(void) {
    int states = 3 * PARTS * OWNERS;
    open_records();
    states = states * states * states;
    for (int n = 0; n < states && !atomic_load(&check_bad); n += EVERY) {
        int granules[CHUNKS], parts[CHUNKS], owners[CHUNKS], rest = n;
        for (int i = 0; i < CHUNKS; i++) {
            granules[i] = 1 + digit(&rest, 3);
            parts[i] = digit(&rest, PARTS);
            owners[i] = digit(&rest, OWNERS);
        }
        check_case("state %d", n);
        plan_each(granules, parts, owners);
    }
    printf("%d states, %ld plans\n", states, plans);
    munmap(arena.buddy.region.base, arena.buddy.region.size);
}

int main(void) {
    TEST(every_state);
    return check_finish();
}
