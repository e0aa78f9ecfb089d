/* Large blocks come, grow, shrink and go in a random order; no block may ever
 * hold another content than its own. */
#include "hazard.h"
#include <malloc.h>

enum { SLOTS = 32, STEPS = 300 };

static size_t some_size(uint64_t random)
{
    switch (random % 4) {
    case 0:
        return 1 + random / 4 % 4000; /* small: the C library's own */
    case 1:
        return 60 * KIB + random / 4 % (10 * KIB); /* around the threshold */
    case 2:
        return 64 * KIB + random / 4 % (256 * KIB);
    default: /* now and then a block that is large for any allocator */
        return random / 4 % 8 ? 128 * KIB + random / 32 % (128 * KIB) : MIB + random / 32 % MIB;
    }
}

/* Marks the beginning, the end and every page in between. */
static void mark(unsigned char *at, size_t size, uint64_t seed)
{
    for (size_t i = 0; i < size; i += 509)
        at[i] = (unsigned char)mix(seed + i);
    at[size - 1] = (unsigned char)seed;
}
static void check(const unsigned char *at, size_t size, uint64_t seed, bool whole)
{
    for (size_t i = 0; i < size - (size > 1); i += 509)
        CHECKF(at[i] == (unsigned char)mix(seed + i), "byte %zu of %zu is %#x", i, size, at[i]);
    CHECK(!whole || at[size - 1] == (unsigned char)seed);
}

int main(void)
{
    static unsigned char *block[SLOTS];
    static size_t size[SLOTS];
    uint64_t random = 1;
    for (uint64_t step = 0; step < STEPS; step++) {
        random = mix(random);
        size_t slot = random % SLOTS, wanted = some_size(random >> 8);
        uint64_t seed = slot * 1000003;
        if (!block[slot]) {
            bool zeroed = step % 2;
            block[slot] = zeroed ? calloc(wanted, 1) : malloc(wanted);
            CHECK(block[slot] && (uintptr_t)block[slot] % 16 == 0);
            CHECK(malloc_usable_size(block[slot]) >= wanted);
            if (zeroed)
                for (size_t i = 0; i < wanted; i += wanted > PAGE ? 127 : 1)
                    CHECKF(block[slot][i] == 0, "calloc: byte %zu of %zu is %#x", i, wanted, block[slot][i]);
        } else if (random >> 60 < 8) {
            check(block[slot], size[slot], seed, true);
            unsigned char *bigger = realloc(block[slot], wanted);
            CHECK(bigger);
            size_t kept = wanted < size[slot] ? wanted : size[slot];
            if (kept > 1)
                check(bigger, kept - 1, seed, false);
            block[slot] = bigger;
        } else {
            check(block[slot], size[slot], seed, true);
            free(block[slot]);
            block[slot] = NULL;
            continue;
        }
        size[slot] = wanted;
        mark(block[slot], wanted, seed);
        if (step % 200 == 199)
            churn();
    }
    for (size_t slot = 0; slot < SLOTS; slot++)
        if (block[slot]) {
            check(block[slot], size[slot], slot * 1000003, true);
            free(block[slot]);
        }
    return 0;
}
