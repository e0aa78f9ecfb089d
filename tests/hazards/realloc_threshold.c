/* realloc up and down across every threshold, with content that was evicted in
 * between; and a large one that the C library would serve with mremap. */
#include "hazard.h"

int main(void)
{
    static const size_t sizes[] = {100,         4096,    65535,       65536,       70000,  131071,
                                   131072,      140000,  MIB - 16,    MIB,         2 * MIB, MIB,
                                   5 * QUARTER, 65536,   65535,       10,          200000, 9 * QUARTER};
    size_t size = 1;
    unsigned char *at = malloc(size);
    CHECK(at);
    at[0] = pattern_byte(1, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (i % 3 == 2)
            churn();
        unsigned char *next = realloc(at, sizes[i]);
        CHECK(next);
        at = next;
        size_t kept = size < sizes[i] ? size : sizes[i];
        for (size_t j = 0; j < kept; j++)
            CHECKF(at[j] == pattern_byte(1, j), "%zu to %zu: byte %zu is %#x", size, sizes[i], j, at[j]);
        size = sizes[i];
        fill_bytes(at, size, 1);
    }
    free(at);

    /* A buffer that grows by half again and again, as vectors do. */
    unsigned char *vector = NULL;
    size_t length = 0, capacity = 0;
    while (length < 5 * QUARTER) {
        if (length == capacity) {
            capacity = capacity ? capacity + capacity / 2 + 1 : 1000;
            unsigned char *bigger = realloc(vector, capacity);
            CHECK(bigger);
            vector = bigger;
        }
        vector[length] = pattern_byte(2, length);
        length++;
    }
    churn();
    for (size_t i = 0; i < length; i++)
        CHECKF(vector[i] == pattern_byte(2, i), "vector: byte %zu", i);
    free(vector);
    return 0;
}
