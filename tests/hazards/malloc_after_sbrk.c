/* The program moves the heap's end itself, between requests of all sizes. The allocator goes on behind what is
 * not its own: no request may fail for that. */
#include "hazard.h"

static const size_t sizes[] = {40 * KIB,  100 * KIB,  160 * KIB,       300 * KIB,
                               700 * KIB, 1000 * KIB, MIB - 16, 5 * QUARTER};
enum { SIZES = sizeof sizes / sizeof *sizes, WAYS = 4 };

static void *ask(int way, size_t size)
{
    void *block;
    switch (way) {
    case 0:
        return malloc(size);
    case 1:
        block = calloc(1, size);
        if (block)
            verify_zero(block, size);
        return block;
    case 2:
        block = malloc(1000);
        CHECK(block);
        return realloc(block, size);
    default:
        return aligned_alloc(64, size);
    }
}

int main(void)
{
    unsigned char *blocks[SIZES][WAYS], *own[SIZES][WAYS];
    for (int i = 0; i < SIZES; i++)
        for (int way = 0; way < WAYS; way++) {
            uint64_t seed = (uint64_t)(i * WAYS + way);
            blocks[i][way] = ask(way, sizes[i]);
            CHECKF(blocks[i][way], "%zu bytes, way %d", sizes[i], way);
            fill_bytes(blocks[i][way], sizes[i], seed);
            /* Whole pages, and less. */
            size_t bytes = way % 2 ? 1000 : PAGE;
            own[i][way] = sbrk((intptr_t)bytes);
            if (own[i][way] == (void *)-1)
                skip("the heap cannot grow here");
            memset(own[i][way], (int)seed + 1, bytes);
        }
    churn();
    for (int i = 0; i < SIZES; i++)
        for (int way = 0; way < WAYS; way++) {
            uint64_t seed = (uint64_t)(i * WAYS + way);
            verify_bytes(blocks[i][way], sizes[i], seed);
            for (size_t at = 0; at < (way % 2 ? 1000 : PAGE); at++)
                CHECKF(own[i][way][at] == seed + 1, "byte %zu of the program's own is %#x", at,
                       own[i][way][at]);
            free(blocks[i][way]);
        }
    return 0;
}
