/* What was written is read back, through several generations of eviction. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 6 * QUARTER;
    unsigned char *at = map(bytes);
    for (uint64_t seed = 1; seed <= 2; seed++) {
        fill(at, bytes, seed);
        churn();
        verify(at, bytes, seed); /* read back only: pages are clean now */
        churn();
        verify(at, bytes, seed);
    }
    /* Backwards and in a scattered order. */
    size_t pages = bytes / PAGE;
    for (size_t i = pages; i-- > 0;)
        verify_from(at + i * PAGE, PAGE, 2, i);
    for (size_t i = 0; i < pages; i++) {
        size_t page = i * 1021 % pages;
        verify_from(at + page * PAGE, PAGE, 2, page);
        fill_from(at + page * PAGE, PAGE, 3, page);
    }
    churn();
    verify(at, bytes, 3);
    return 0;
}
