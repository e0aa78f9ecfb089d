/* MADV_FREE: each page holds its old content or zeros, whole, until it is
 * written; what is written afterwards is kept for certain. */
#include "hazard.h"

static void old_or_zero(const uint64_t *words, size_t pages, uint64_t seed)
{
    for (size_t page = 0; page < pages; page++) {
        bool zero = true, old = true;
        for (size_t i = 0; i < WORDS; i++) {
            zero &= words[page * WORDS + i] == 0;
            old &= words[page * WORDS + i] == pattern(seed, page, i);
        }
        CHECKF(zero || old, "page %zu is neither zero nor its old content", page);
    }
}

int main(void)
{
    size_t bytes = 6 * QUARTER, half = bytes / 2;
    unsigned char *at = map(bytes);
    for (uint64_t round = 1; round < 4; round++) {
        fill(at, bytes, round);
        if (round != 2)
            churn();
        SYS(madvise(at, half, MADV_FREE));
        if (round == 3)
            churn();
        old_or_zero((uint64_t *)at, half / PAGE / 2, round);
        fill_from(at + half / 2, half / 2, round + 7, 0); /* written: no longer free */
        churn();
        old_or_zero((uint64_t *)at, half / PAGE / 2, round);
        verify(at + half / 2, half / 2, round + 7);
        verify_from(at + half, half, round, half / PAGE);
    }
    return 0;
}
