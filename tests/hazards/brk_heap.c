/* The heap behind sbrk, moved by hand: room that is given back and taken again
 * is zero, what lies below stays. And thousands of small blocks that fill it. */
#include "hazard.h"

int main(void)
{
    enum { BLOCKS = 20000 };
    static unsigned char *small[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        small[i] = malloc(16 + i % 200);
        CHECK(small[i]);
        memset(small[i], (int)(i % 251), 16 + i % 200);
    }
    churn();
    for (size_t i = 0; i < BLOCKS; i++)
        for (size_t j = 0; j < 16 + i % 200; j += 7)
            CHECKF(small[i][j] == i % 251, "small block %zu byte %zu is %#x", i, j, small[i][j]);
    for (size_t i = 0; i < BLOCKS; i += 2)
        free(small[i]);
    churn();
    for (size_t i = 1; i < BLOCKS; i += 2) {
        CHECK(small[i][0] == i % 251);
        free(small[i]);
    }

    unsigned char *start = sbrk(0);
    CHECK(start != (void *)-1);
    size_t bytes = 6 * QUARTER;
    unsigned char *at = sbrk((intptr_t)bytes + (intptr_t)PAGE);
    if (at == (void *)-1)
        skip("the heap cannot grow here");
    at = (unsigned char *)(((uintptr_t)at + PAGE - 1) / PAGE * PAGE);
    verify_zero(at, bytes);
    fill(at, bytes, 1);
    churn();
    verify(at, bytes, 1);
    SYS(brk(at + bytes / 2));
    churn();
    SYS(brk(at + bytes));
    verify(at, bytes / 2, 1);
    verify_zero(at + bytes / 2, bytes / 2);
    fill(at + bytes / 2, bytes / 2, 2);
    churn();
    verify(at, bytes / 2, 1);
    verify(at + bytes / 2, bytes / 2, 2);
    SYS(brk(start));
    CHECK(sbrk(0) == start);
    /* The allocator still works. */
    void *after = malloc(10000);
    CHECK(after);
    memset(after, 1, 10000);
    free(after);
    return 0;
}
