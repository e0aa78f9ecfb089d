/* A fault must not disturb any register: vector registers, flags and the
 * floating-point environment are live across thousands of faults. */
#include "hazard.h"
#include <fenv.h>

typedef uint64_t vector __attribute__((vector_size(32)));

int main(void)
{
    size_t pages = 400;
    uint64_t *at = map(pages * PAGE);
    fill(at, pages * PAGE, 3);
    churn();
    CHECK(fesetround(FE_UPWARD) == 0);
    vector a = {1, 2, 3, 4}, b = {5, 6, 7, 8}, c = {9, 10, 11, 12}, d = {13, 14, 15, 16};
    double x = 1.0, y = 3.0;
    uint64_t expected[4] = {0}, carry = 0, expected_carry = 0;
    for (size_t page = 0; page < pages; page++) {
        volatile uint64_t *word = &at[page * WORDS + page % WORDS];
        uint64_t value = *word; /* faults with everything above in registers */
        a += value, b ^= a, c += b, d ^= c;
        x += 1.0 / y;
        /* A carry is produced, a fault happens, the carry is consumed. */
#if defined(__x86_64__)
        uint64_t loaded, sum = 0;
        __asm__ volatile("stc\n\tmov (%2), %0\n\tadc $0, %1"
                         : "=&r"(loaded), "+&r"(sum)
                         : "r"(&at[(pages - 1 - page) * WORDS])
                         : "cc", "memory");
        carry += sum;
        CHECK(loaded == pattern(3, pages - 1 - page, 0));
#else
        carry++;
#endif
        expected_carry++;
    }
    CHECKF(carry == expected_carry, "the carry flag was lost %llu times",
           (unsigned long long)(expected_carry - carry));
    CHECK(fegetround() == FE_UPWARD);
    vector ea = {1, 2, 3, 4}, eb = {5, 6, 7, 8}, ec = {9, 10, 11, 12}, ed = {13, 14, 15, 16};
    volatile double ex = 1.0;
    for (size_t page = 0; page < pages; page++) {
        uint64_t value = pattern(3, page, page % WORDS);
        ea += value, eb ^= ea, ec += eb, ed ^= ec;
        ex = ex + 1.0 / y;
    }
    for (int i = 0; i < 4; i++)
        expected[i] = (a[i] ^ ea[i]) | (b[i] ^ eb[i]) | (c[i] ^ ec[i]) | (d[i] ^ ed[i]);
    CHECK(!(expected[0] | expected[1] | expected[2] | expected[3]));
    CHECKF(x == ex, "%.17g instead of %.17g", x, ex);
    return 0;
}
