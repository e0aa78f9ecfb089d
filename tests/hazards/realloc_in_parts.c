/* A large block of which a page was advised upon is several mappings for the kernel, which does not move them to
 * where there is room for more: the block is copied. Nothing of it is lost, and neither are the addresses that it
 * was to move to, nor those that were meant for more memory than can be had. */
#include "hazard.h"

/* With what the allocator puts in front, a whole number of MiB. The last page is not looked at. */
#define BLOCK (2 * MIB - 16)
#define LONGER (34 * MIB - 16)
/* No block that was freed is as long as these. */
#define LONGEST (96 * MIB - 16)
#define LONGEST_BUT_LONGER (98 * MIB - 16)
#define TOO_MUCH (900 * GIB)
/* More than all blocks that there are at once, and less than those of all rounds would be. */
#define LITTLE (128 * MIB)
/* More than all blocks that there ever were, one behind the other, and far less than TOO_MUCH. */
#define NEAR (512 * MIB)
enum { ROUNDS = 5 };

/* The next block lies near the first one. */
static void check_near(uintptr_t first, size_t bytes)
{
    void *block = malloc(bytes);
    CHECK(block);
    uintptr_t at = (uintptr_t)block, away = at > first ? at - first : first - at;
    free(block);
    if (is_managed())
        CHECKF(away < NEAR, "%zu MiB lie between", (size_t)away / MIB);
}

int main(void)
{
    uintptr_t first = 0;
    size_t space = 0;
    for (size_t round = 0; round < ROUNDS; round++) {
        unsigned char *block = malloc(BLOCK);
        CHECK(block);
        fill(block, BLOCK, round);
        SYS(madvise((void *)(((uintptr_t)block + MIB) & ~(PAGE - 1)), PAGE, MADV_DONTDUMP));
        churn();
        unsigned char *longer = realloc(block, LONGER);
        CHECK(longer);
        verify(longer, BLOCK, round);
        if (round == 0)
            first = (uintptr_t)longer;
        free(longer);
        if (round == 0)
            space = address_space();
    }
    size_t now = address_space();
    CHECKF(now < space + LITTLE, "%zu MiB are mapped, and were %zu", now / MIB, space / MIB);
    check_near(first, LONGEST);

    void *volatile much = malloc(TOO_MUCH);
    if (much)
        free(much); /* This machine promises more than it has. */
    else
        check_near(first, LONGEST_BUT_LONGER);
    return 0;
}
