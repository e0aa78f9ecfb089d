/* A thousand regions, released in another order than they came, some reused. */
#include "hazard.h"

enum { REGIONS = 1000 };

static size_t size_of(int i)
{
    return (size_t)(4 + i % 7) * 16 * KIB;
}

int main(void)
{
    static unsigned char *region[REGIONS];
    for (int i = 0; i < REGIONS; i++) {
        region[i] = map(size_of(i));
        fill_from(region[i], PAGE, (uint64_t)i, 0);
        fill_from(region[i] + size_of(i) - PAGE, PAGE, (uint64_t)i, 1);
    }
    churn();
    for (int step = 0; step < REGIONS; step++) {
        int i = step * 617 % REGIONS;
        verify_from(region[i], PAGE, (uint64_t)i, 0);
        verify_zero(region[i] + size_of(i) / 2, PAGE);
        verify_from(region[i] + size_of(i) - PAGE, PAGE, (uint64_t)i, 1);
        SYS(munmap(region[i], size_of(i)));
        if (i % 3 == 0) { /* a newcomer may get the same addresses: it must be zero */
            region[i] = map(size_of(i));
            verify_zero(region[i], PAGE);
            verify_zero(region[i] + size_of(i) - PAGE, PAGE);
            fill_from(region[i], PAGE, (uint64_t)i + 5000, 0);
        } else {
            region[i] = NULL;
        }
    }
    churn();
    for (int i = 0; i < REGIONS; i += 3) {
        verify_from(region[i], PAGE, (uint64_t)i + 5000, 0);
        SYS(munmap(region[i], size_of(i)));
    }
    return 0;
}
