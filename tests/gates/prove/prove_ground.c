/* GROUND, for all values of 64 bits; but set bits are counted in numbers below 256. */
// rooms: GROUND
// unwind: 10
#include "prove.h"

// broken: s/return a < b ? a : b;/return a;/
void prove_least_and_most(void) {
    uint64_t a = any(), b = any(), least = gpi_ground_min(a, b), most = gpi_ground_max(a, b);
    CLAIM(least <= a && least <= b && (least == a || least == b));
    CLAIM(most >= a && most >= b && (most == a || most == b));
}

// broken: s/return n != 0 \&\& (n \& (n - 1)) == 0;/return (n \& (n - 1)) == 0;/
void prove_powers(void) {
    uint64_t n = any(), at = any_below(64);
    CLAIM(gpi_ground_is_power((uint64_t)1 << at));
    if (gpi_ground_is_power(n)) CLAIM(n == (uint64_t)1 << gpi_ground_low_bit(n));
}

// broken: s/return n \& ~(power - 1);/return n \& ~power;/
void prove_down(void) {
    uint64_t n = any(), power = any_power(), down = gpi_ground_down(n, power);
    CLAIM(down <= n && n - down < power && (down & (power - 1)) == 0);
}

// broken: s/(n + power - 1) \& ~(power - 1)/(n + power) \& ~(power - 1)/
void prove_up(void) {
    uint64_t n = any(), power = any_power(), up;
    ASSUME(n <= UINT64_MAX - (power - 1));
    up = gpi_ground_up(n, power);
    CLAIM(up >= n && up - n < power && (up & (power - 1)) == 0);
}

// broken: s/63u - (unsigned)__builtin_clzll(n)/62u - (unsigned)__builtin_clzll(n)/
void prove_bits(void) {
    uint64_t n = any();
    ASSUME(n != 0);
    CLAIM(n >> gpi_ground_high_bit(n) == 1);
    CLAIM(n << (63 - gpi_ground_low_bit(n)) == (uint64_t)1 << 63);
}

// broken: s/for (; n; n \&= n - 1) bits++;/for (; n > 1; n \&= n - 1) bits++;/
void prove_count(void) {
    uint64_t n = any(), at = any_below(64);
    unsigned bits;
    ASSUME(!(n >> at & 1) && n < 256); /* the loop is as long as there are bits */
    bits = gpi_ground_bits(n);
    CLAIM(gpi_ground_bits(n | (uint64_t)1 << at) == bits + 1);
    CLAIM(gpi_ground_bits(0) == 0);
}
