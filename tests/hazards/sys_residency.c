/* mincore and msync take any mapped range and fail for unmapped ones. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 4 * QUARTER, pages = bytes / PAGE;
    unsigned char *at = map(bytes), *vector = map(64 * KIB);
    fill(at, bytes, 1);
    churn();
    SYS(mincore(at, bytes, vector));
    SYS(msync(at, bytes, MS_SYNC));
    SYS(msync(at, bytes, MS_ASYNC));
    verify(at, bytes, 1);
    volatile uint64_t value = *(volatile uint64_t *)(at + 77 * PAGE);
    CHECK(value == pattern(1, 77, 0));
    SYS(mincore(at + 77 * PAGE, PAGE, vector));
    if (!is_managed())
        CHECKF(vector[0] & 1, "a page that was just read is not resident");
    SYS(munmap(at + bytes / 2, PAGE));
    CHECK(mincore(at, bytes, vector) == -1 && errno == ENOMEM);
    CHECK(msync(at, bytes, MS_SYNC) == -1 && errno == ENOMEM);
    CHECK(mincore(at + 1, PAGE, vector) == -1 && errno == EINVAL);
    CHECK(msync(at + 1, PAGE, MS_SYNC) == -1 && errno == EINVAL);
    churn();
    verify(at, bytes / 2, 1);
    verify_from(at + bytes / 2 + PAGE, bytes / 2 - PAGE, 1, pages / 2 + 1);
    return 0;
}
