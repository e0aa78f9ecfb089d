/* Large mappings that come and go, one after the other: what was mapped for their books must not
 * stay, nor be mapped anew each time. */
#include "hazard.h"

enum { TIMES = 600, FIRST = 100 };
static const size_t large = 1024 * MIB;
/* A heap of books may grow once. */
static const size_t SPACE = 8 * MIB;

int main(void)
{
    unsigned char *still = map(6 * QUARTER);
    fill(still, 6 * QUARTER, 1);
    churn();
    size_t space = 0;
    for (int i = 0; i < TIMES; i++) {
        unsigned char *at = map(large);
        size_t page = (size_t)i * 419 % (large / PAGE);
        CHECKF(at[page * PAGE] == 0, "mapping %d holds what an earlier one held", i);
        at[page * PAGE] = 1;
        SYS(munmap(at, large));
        if (i == FIRST)
            space = address_space();
    }
    size_t grown = address_space();
    /* The last one may be under way still where Terrace's manager is held up. */
    for (int i = 0; i < 1200 && grown > space + SPACE; i++) {
        usleep(50000);
        grown = address_space();
    }
    CHECKF(grown <= space + SPACE, "%d mappings: %zu KiB became %zu", TIMES - FIRST, space / KIB, grown / KIB);
    verify(still, 6 * QUARTER, 1);
    return 0;
}
