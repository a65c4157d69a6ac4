/* A thread waits for a spinning lock, and other threads give it back, take it, or starve for it, at
   each moment in between. Their part is done where the waiter looks at the lock or tries to take
   it, so that they always meet. */
static void on_look(const void *place);
static void on_try(void);
#define __atomic_load_n(place, order) (on_look(place), __atomic_load_n(place, order))
#define __atomic_exchange_n(place, value, order) \
    (on_try(), __atomic_exchange_n(place, value, order))
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#undef __atomic_load_n
#undef __atomic_exchange_n
#include "check.h"

static gpi_lock lock;
static unsigned looks, tries;   /* of the waiter: one look in each round */
static unsigned opens_at;       /* the look before which the holder gives the lock back */
static unsigned taken_at;       /* the look before which a starved thread takes it */
static unsigned lost_try;       /* the try before which another thread takes it; counted from 1 */

enum { HELD_FOR = 4 }; /* looks, by a thread that takes it meanwhile */

static void another_takes_it(void) {
    CHECK_EQ(lock.held, 0); /* the waiter has left it alone */
    lock.held = 1;
    opens_at = looks + HELD_FOR;
}

static void on_look(const void *place) {
    if (place != &lock.held) return;
    if (++looks == opens_at) lock.held = 0;
    if (looks != taken_at) return;
    another_takes_it();
    lock.starved--;
}

static void on_try(void) {
    if (++tries == lost_try) another_takes_it();
}

static void open_lock(int held, int starved) {
    lock.held = held;
    lock.starved = starved;
    looks = tries = opens_at = taken_at = lost_try = 0;
}

/* Has to wait until that round, and then has the lock. */
static void lock_in_round(unsigned round) {
    CHECK_EQ(gpi_host_lock(&lock), round);
    CHECK_EQ(looks, round);
    CHECK_EQ(lock.held, 1);
    CHECK_EQ(gpi_host_try(&lock), 0);
    gpi_host_unlock(&lock);
    CHECK_EQ(lock.held, 0);
}

/* While it pauses, yields or sleeps, starved or not: it takes the lock in the round in which it is
   given back, and counts as starved no longer. */
static void given_back_in_any_round(void) {
    static const unsigned rounds[] = {1, 2, 3, GPI_SPINS, GPI_SPINS + 1, GPI_SPINS + 8,
                                      GPI_SPINS + 9, GPI_STARVED - 1, GPI_STARVED,
                                      GPI_STARVED + 1, GPI_STARVED + 20};
    for (size_t i = 0; i < sizeof rounds / sizeof rounds[0]; i++) {
        check_case("round %u", rounds[i]);
        open_lock(1, 0);
        opens_at = rounds[i];
        lock_in_round(rounds[i]);
        CHECK_EQ(lock.starved, 0);
    }
}

/* A newcomer finds the lock open, and leaves it to one that starves; so does one that has waited
   for a while. */
static void the_starved_one_is_first(void) {
    open_lock(0, 1);
    taken_at = 5;
    lock_in_round(5 + HELD_FOR);
    open_lock(1, 1);
    opens_at = 40;
    taken_at = 45;
    lock_in_round(45 + HELD_FOR);
    CHECK_EQ(lock.starved, 0);
}

/* A starved one that does not come is waited for until one starves oneself. */
static void two_that_starve_compete(void) {
    open_lock(0, 1);
    lock_in_round(GPI_STARVED);
    CHECK_EQ(lock.starved, 1); /* the other still does */
}

/* It sees the lock open, and another takes it first: it goes on waiting. */
static void another_is_faster(void) {
    open_lock(1, 0);
    opens_at = 3;
    lost_try = 2; /* the first is before the wait */
    lock_in_round(3 + HELD_FOR);
}

int main(void) {
    TEST(given_back_in_any_round);
    TEST(the_starved_one_is_first);
    TEST(two_that_starve_compete);
    TEST(another_is_faster);
    return check_finish();
}
