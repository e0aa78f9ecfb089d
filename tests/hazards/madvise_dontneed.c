/* MADV_DONTNEED: zeros afterwards, resident or absent before, and the old
 * content never returns. The neighbours are untouched. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 8 * QUARTER, part = 2 * QUARTER;
    unsigned char *at = map(bytes);
    for (uint64_t round = 1; round < 3; round++) {
        fill(at, bytes, round);
        churn();
        verify_from(at + part, part / 2, round, part / PAGE); /* half present, half absent */
        SYS(madvise(at + part, part, MADV_DONTNEED));
        verify_zero(at + part, part / 4);
        churn();
        verify_zero(at + part, part);
        verify(at, part, round);
        verify_from(at + 2 * part, 2 * part, round, 2 * part / PAGE);
        /* Written again, it holds the new content. */
        fill(at + part, part, round + 10);
        churn();
        verify(at + part, part, round + 10);
        /* Every other page, one at a time, and a length that is no whole page. */
        for (size_t page = 0; page < 64; page += 2)
            SYS(madvise(at + page * PAGE, 100, MADV_DONTNEED));
        churn();
        for (size_t page = 0; page < 64; page++)
            if (page % 2)
                verify_from(at + page * PAGE, PAGE, round, page);
            else
                verify_zero(at + page * PAGE, PAGE);
    }
    /* Across two mappings, and with a hole: as plain Linux, done and ENOMEM. */
    fill(at, bytes, 5);
    churn();
    SYS(munmap(at + part, PAGE));
    CHECK(madvise(at, bytes, MADV_DONTNEED) == -1 && errno == ENOMEM);
    verify_zero(at, part);
    verify_zero(at + part + PAGE, bytes - part - PAGE);
    CHECK(madvise(at + 1, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    CHECK(madvise(at, PAGE, 12345) == -1 && errno == EINVAL);
    return 0;
}
