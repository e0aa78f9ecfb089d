/* mremap grows and shrinks a region, in place or by moving it: old content
 * stays, new room is zero, what was cut off does not come back. */
#include "hazard.h"

int main(void)
{
    size_t bytes = QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    for (size_t next = 2 * QUARTER; next <= 8 * QUARTER; next += 2 * QUARTER) {
        churn();
        at = mremap(at, bytes, next, MREMAP_MAYMOVE);
        CHECKF(at != MAP_FAILED, "mremap: %s", strerror(errno));
        verify(at, bytes, 1);
        verify_zero(at + bytes, next - bytes);
        fill(at, next, 1);
        bytes = next;
    }
    churn();
    at = mremap(at, bytes, bytes / 2, 0); /* shrinking needs no move */
    CHECK(at != MAP_FAILED);
    verify(at, bytes / 2, 1);
    churn();
    at = mremap(at, bytes / 2, bytes, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED);
    verify(at, bytes / 2, 1);
    verify_zero(at + bytes / 2, bytes / 2); /* what was cut off is gone for good */

    /* Growing without permission to move, into memory that is taken. */
    unsigned char *pair = map(4 * QUARTER);
    fill(pair, 4 * QUARTER, 3);
    churn();
    CHECK(mremap(pair, QUARTER, 4 * QUARTER, 0) == MAP_FAILED && errno == ENOMEM);
    verify(pair, 4 * QUARTER, 3);
    /* A middle part moves out; both neighbours stay. */
    unsigned char *moved = mremap(pair + 64 * PAGE, 128 * PAGE, 192 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    churn();
    verify(pair, 64 * PAGE, 3);
    verify_from(moved, 128 * PAGE, 3, 64);
    verify_zero(moved + 128 * PAGE, 64 * PAGE);
    verify_from(pair + 192 * PAGE, 4 * QUARTER - 192 * PAGE, 3, 192);
    /* Errors as ever. */
    CHECK(mremap(at + 1, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(at, bytes, 0, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    SYS(munmap(at, bytes));
    CHECK(mremap(at, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    return 0;
}
