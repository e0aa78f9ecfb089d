/* mremap with MREMAP_DONTUNMAP: the content moves, the old range stays mapped
 * and reads as zeros. */
#include "hazard.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

int main(void)
{
    size_t bytes = 4 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    unsigned char *moved = mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (moved == MAP_FAILED && errno == EINVAL)
        skip("this kernel has no MREMAP_DONTUNMAP");
    CHECKF(moved != MAP_FAILED, "mremap: %s", strerror(errno));
    CHECK(moved != at);
    verify(moved, bytes, 1);
    verify_zero(at, bytes);
    fill(at, bytes, 2);
    churn();
    verify(moved, bytes, 1);
    verify(at, bytes, 2);
    SYS(munmap(at, bytes));
    churn();
    verify(moved, bytes, 1);
    return 0;
}
