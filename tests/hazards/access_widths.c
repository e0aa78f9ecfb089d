/* Loads, stores and read-modify-writes of every width, across the border of
 * two absent pages, and string instructions over many absent pages. */
#include "hazard.h"

int main(void)
{
    size_t pages = 192, bytes = pages * PAGE;
    unsigned char *at = map(bytes), *copy = map(bytes);
    fill(at, bytes, 5);
    churn();
    for (size_t page = 1; page < pages; page += 2) { /* unaligned loads over a border */
        for (size_t width = 1; width <= 64; width *= 2) {
            unsigned char got[64];
            size_t start = page * PAGE - width / 2;
            __builtin_memcpy(got, at + start, width);
            for (size_t i = 0; i < width; i++)
                CHECKF(got[i] == pattern_byte(5, start + i), "width %zu at %#zx", width, start);
        }
    }
    churn();
    for (size_t page = 1; page < pages; page++) { /* unaligned stores over a border */
        typedef uint64_t unaligned __attribute__((aligned(1), may_alias));
        *(volatile unaligned *)(at + page * PAGE - 3) = 0x0102030405060708ull;
    }
    churn();
    for (size_t i = 0; i < bytes; i++) {
        size_t in = (i + 3) % PAGE;
        bool stored = in < 8 && i >= PAGE - 3 && i < bytes - 3;
        unsigned char want = stored ? (unsigned char)(8 - in) : pattern_byte(5, i);
        CHECKF(at[i] == want, "byte %#zx is %#x, expected %#x", i, at[i], want);
    }
#if defined(__x86_64__)
    fill(at, bytes, 6);
    memset(copy, 0x11, bytes);
    churn();
    unsigned char *to = copy + 5, *from = at;
    size_t count = bytes - 5;
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(count) : : "memory");
    CHECK(count == 0);
    churn();
    verify_bytes(at, bytes, 6);
    for (size_t i = 0; i < bytes; i++)
        CHECKF(copy[i] == (i < 5 ? 0x11 : pattern_byte(6, i - 5)), "rep movsb: byte %#zx", i);
    churn();
    to = copy, count = bytes;
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(0x77) : "memory");
    for (size_t i = 0; i < bytes; i++)
        CHECKF(copy[i] == 0x77, "rep stosb: byte %#zx", i);
#endif
    /* Atomics as the very first access after eviction. */
    _Atomic uint64_t *counters = map(bytes);
    for (int round = 0; round < 3; round++) {
        for (size_t page = 0; page < pages; page++)
            atomic_fetch_add(&counters[page * WORDS + page % WORDS], page + 1);
        churn();
    }
    for (size_t page = 0; page < pages; page++) {
        uint64_t expected = 3 * (page + 1);
        CHECKF(atomic_compare_exchange_strong(&counters[page * WORDS + page % WORDS], &expected, 0),
               "counter %zu is %llu", page, (unsigned long long)expected);
    }
    verify_zero(counters, bytes);
    return 0;
}
