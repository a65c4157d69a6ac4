/* LEDGER: limits and counters, for all values below 2^32: MOST. */
// rooms: GROUND HOST LEDGER
// unwind: 150
#include "prove.h"

#define MOST ((uint64_t)1 << 32)

static gpupool_counter any_counter(void) {
    gpupool_counter counter;
    counter.now = any_below(MOST);
    counter.peak = any_below(MOST);
    counter.total = any_below(MOST);
    ASSUME(counter.now <= counter.peak && counter.now <= counter.total);
    return counter;
}

// broken: s/reserved.now >= ledger->limit_bytes) return 0/reserved.now > ledger->limit_bytes + 1) return 0/
void prove_room(void) {
    static gpi_ledger ledger;
    uint64_t room;
    ledger.limit_bytes = any();
    ledger.reserved.now = any();
    room = gpi_ledger_room(&ledger);
    if (ledger.reserved.now <= ledger.limit_bytes)
        CLAIM(ledger.reserved.now + room == ledger.limit_bytes);
    else CLAIM(room == 0);
}

// broken: s/    counter->now -= amount;/    counter->now -= amount + 1;/
void prove_what_comes_and_goes(void) {
    gpupool_counter counter = any_counter(), before = counter;
    uint64_t amount = any_below(MOST);
    gpi_ledger_add(&counter, amount);
    CLAIM(counter.now <= counter.peak && counter.now <= counter.total);
    CLAIM(counter.peak >= before.peak && counter.total - before.total == amount);
    gpi_ledger_sub(&counter, amount);
    CLAIM(counter.now == before.now);
    gpi_ledger_set(&counter, amount);
    CLAIM(counter.now == amount && counter.now <= counter.peak && counter.now <= counter.total);
}

// broken: s/if (change->now > change->most) change->most = change->now;//
void prove_changes_folded_in_later_come_out_the_same(void) {
    gpupool_counter at_once = any_counter(), later = at_once;
    gpi_change change = {0, 0, 0};
    uint64_t less = any_below(MOST);
    uint64_t more = any_below(MOST);
    ASSUME(less <= at_once.now);
    gpi_ledger_sub(&at_once, less);
    change.now -= (int64_t)less;
    gpi_ledger_add(&at_once, more);
    gpi_ledger_note(&change, more);
    gpi_ledger_fold(&later, &change);
    CLAIM(later.now == at_once.now && later.peak == at_once.peak);
    CLAIM(later.total == at_once.total && change.now == 0 && change.total == 0);
}

// broken: s/counter->peak = gpi_ground_max(counter->peak, aside->peak);//
void prove_a_scope_leaves_the_counters_as_if_it_had_not_been(void) {
    static gpi_ledger ledger;
    static gpi_phase scope;
    static gpupool_stats now, phase;
    gpupool_counter plain = any_counter();
    uint64_t more = any_below(MOST), less = any_below(MOST);
    ASSUME(less <= plain.now + more);
    ledger.granted = plain;
    gpi_ledger_push(&ledger, &scope, &now);
    gpi_ledger_add(&ledger.granted, more);
    gpi_ledger_sub(&ledger.granted, less);
    gpi_ledger_add(&plain, more);
    gpi_ledger_sub(&plain, less);
    CLAIM(gpi_ledger_pop(&ledger, &phase) == &scope && ledger.phases == NULL);
    CLAIM(ledger.granted.now == plain.now && ledger.granted.peak == plain.peak);
    CLAIM(ledger.granted.total == plain.total);
    CLAIM(phase.granted.now == more - less && phase.granted.total == more);
    CLAIM(phase.granted.peak == more);
}
