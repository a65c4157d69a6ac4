/* GROUND's arithmetic against loops that cannot be wrong: all 16-bit values, and the neighbourhood
   of every power of two up to 2^63. */
// build: asan -fsanitize=address
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "check.h"

#define SMALL 65536u /* one more than the largest 16-bit value */

/* ---- naive ---- */

static unsigned lowest(uint64_t n) {
    for (unsigned at = 0;; at++)
        if (n % 2) return at;
        else n /= 2;
}

static unsigned highest(uint64_t n) {
    unsigned at = 0;
    for (; n > 1; n /= 2) at++;
    return at;
}

static int is_power(uint64_t n) {
    uint64_t power = 1;
    for (int k = 0; k < 64; k++, power *= 2)
        if (n == power) return 1;
    return 0;
}

/* ---- every 16-bit value ---- */

static void bits_of_all_small_values(void) {
    CHECK_EQ(gpi_ground_is_power(0), 0);
    for (uint64_t n = 1; n <= SMALL; n++) {
        check_case("n %llu", (unsigned long long)n);
        CHECK_EQ(gpi_ground_low_bit(n), lowest(n));
        CHECK_EQ(gpi_ground_high_bit(n), highest(n));
        CHECK_EQ(gpi_ground_is_power(n), is_power(n));
    }
}

/* The multiples go by as n counts up: the last one met is below, the next one above. */
static void rounding_of_all_small_values(void) {
    for (uint64_t power = 1; power <= SMALL; power *= 2) {
        uint64_t below = 0, above = 0;
        for (uint64_t n = 0; n <= SMALL; n++) {
            check_case("n %llu, power %llu", (unsigned long long)n, (unsigned long long)power);
            if (n > above) above += power;
            if (n == below + power) below += power;
            CHECK_EQ(gpi_ground_down(n, power), below);
            CHECK_EQ(gpi_ground_up(n, power), above);
        }
    }
}

/* ---- around powers of two ---- */

static const uint64_t around[] = {0, 1, 2, 3, 255, 256, 257};
#define AROUND (sizeof around / sizeof around[0])

/* Calls `see` for every value a little above and below 2^0 ... 2^63, and below 2^64. */
static void for_each_edge(void (*see)(uint64_t n)) {
    for (int k = 0; k < 64; k++)
        for (size_t i = 0; i < AROUND; i++) {
            see(((uint64_t)1 << k) + around[i]);
            see(((uint64_t)1 << k) - around[i]); /* wraps to values near 2^64 for a small k */
        }
}

static void see_bits(uint64_t n) {
    check_case("n %llu", (unsigned long long)n);
    CHECK_EQ(gpi_ground_is_power(n), is_power(n));
    if (n == 0) return;
    CHECK_EQ(gpi_ground_low_bit(n), lowest(n));
    CHECK_EQ(gpi_ground_high_bit(n), highest(n));
}

static void bits_around_powers(void) { for_each_edge(see_bits); }

/* up's promise ends a power below 2^64, where the sum would wrap. */
static void see_rounding(uint64_t n) {
    for (int k = 0; k < 64; k++) {
        uint64_t power = (uint64_t)1 << k, over = n % power;
        check_case("n %llu, power 2^%d", (unsigned long long)n, k);
        CHECK(gpi_ground_down(n, power) == n - over);
        if (n > UINT64_MAX - power) continue;
        CHECK(gpi_ground_up(n, power) == (over ? n - over + power : n));
    }
}

static void rounding_around_powers(void) { for_each_edge(see_rounding); }

/* ---- the smaller and the larger ---- */

static void see_pair(uint64_t a, uint64_t b) {
    uint64_t least = gpi_ground_min(a, b), most = gpi_ground_max(a, b);
    check_case("%llu and %llu", (unsigned long long)a, (unsigned long long)b);
    CHECK(least <= a && least <= b && (least == a || least == b));
    CHECK(most >= a && most >= b && (most == a || most == b));
}

static void see_pairs(uint64_t n) {
    see_pair(n, n);
    see_pair(n, n + 1);
    see_pair(n, n - 1);
    for (int k = 0; k < 64; k++) {
        see_pair(n, (uint64_t)1 << k);
        see_pair((uint64_t)1 << k, n);
    }
}

static void smaller_and_larger(void) { for_each_edge(see_pairs); }

int main(void) {
    TEST(bits_of_all_small_values);
    TEST(rounding_of_all_small_values);
    TEST(bits_around_powers);
    TEST(rounding_around_powers);
    TEST(smaller_and_larger);
    return check_finish();
}
