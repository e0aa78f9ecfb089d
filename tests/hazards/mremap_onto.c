/* mremap onto memory that has content, time and again: what has moved is there afterwards, each word
 * of it. Between the end of the old content and the arrival of the new nothing else may be taken for
 * either. */
#include "hazard.h"

enum { ROUNDS = 150 };
/* Either fits into the budget, both do not. */
static const size_t bytes = 3 * QUARTER;

int main(void)
{
    unsigned char *from = map(bytes), *to = map(bytes);
    churn(); /* managing begins */
    for (int round = 1; round <= often(ROUNDS); round++) {
        fill(from, bytes, (uint64_t)round);
        void *moved = mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        CHECKF(moved == to, "mremap: %s", strerror(errno));
        verify(to, bytes, (uint64_t)round);
        void *again = mmap(from, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECKF(again == from, "mmap: %s", strerror(errno));
    }
    verify_zero(from, bytes);
    return 0;
}
