/* Other memory is mapped in the place of memory that was in use a moment ago,
 * while pages leave: what is written to the new memory stays there. Its end is
 * written at once: whoever has to forget the old pages is not that far yet. */
#include "hazard.h"

#define BYTES (8 * QUARTER)
#define TAIL (BYTES - QUARTER / 2)

int main(void)
{
    unsigned char *at = map(BYTES);
    struct churner churner;
    churner_start(&churner);
    for (uint64_t round = 0; round < 8; round++) {
        uint64_t *words = (uint64_t *)at;
        for (size_t i = 0; i < BYTES / sizeof *words; i += WORDS)
            words[i] = i ^ round;
        for (size_t i = TAIL / sizeof *words; i < BYTES / sizeof *words; i += WORDS)
            words[i]++; /* the end is in place */
        void *again = mmap(at, BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(again == at);
        for (int pass = 0; pass < 8; pass++) {
            for (size_t i = TAIL / sizeof *words; i < BYTES / sizeof *words; i += WORDS)
                CHECKF(words[i] == (pass ? i + round : 0), "round %d, pass %d: page %zu is %#llx",
                       (int)round, pass, i / WORDS, (unsigned long long)words[i]);
            for (size_t i = TAIL / sizeof *words; i < BYTES / sizeof *words; i += WORDS)
                words[i] = i + round;
            usleep(20);
        }
        SYS(munmap(at, BYTES));
        at = map(BYTES);
    }
    churner_stop(&churner);
    return 0;
}
