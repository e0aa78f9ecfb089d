/* mremap to a fixed place: over free space and over other memory, whose content
 * it replaces; and back again. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 4 * QUARTER;
    unsigned char *at = map(bytes), *target = map(2 * bytes);
    for (int round = 0; round < 2; round++) {
        fill(at, bytes, 1);
        fill(target, 2 * bytes, 2);
        churn();
        unsigned char *moved = mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                                      target + bytes / 2);
        CHECKF(moved == target + bytes / 2, "mremap: %s", strerror(errno));
        verify(target, bytes / 2, 2);
        verify(moved, bytes, 1);
        verify_from(target + bytes * 3 / 2, bytes / 2, 2, bytes * 3 / 2 / PAGE);
        churn();
        verify(target, bytes / 2, 2);
        verify(moved, bytes, 1);
        fill(moved, bytes, 3);
        churn();
        /* Back to where it was, now half as large. */
        moved = mremap(moved, bytes, bytes / 2, MREMAP_MAYMOVE | MREMAP_FIXED, at);
        CHECK(moved == at);
        verify(at, bytes / 2, 3);
        SYS(munmap(at, bytes));
        CHECK(mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
        CHECK(mmap(target, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == target);
        verify_zero(at, bytes);
        verify_zero(target, 2 * bytes);
    }
    return 0;
}
