/* Memory that was never touched is walked through from its beginning, which may bring
 * huge pages in ahead; meanwhile it is discarded, replaced, moved, shared with a child,
 * and walked by several threads. What was written stays, what was not is zero. */
#include "hazard.h"

#define HUGE (2 * MIB)
#define WALKED (8 * HUGE)
#define APART (10 * HUGE)

static void *walk_part(void *at)
{
    fill(at, WALKED, 5);
    return NULL;
}

int main(void)
{
    map(80 * MIB); /* more than the budget is mapped, so that all is managed */
    size_t bytes = 24 * MIB;
    unsigned char *at = map(bytes + HUGE);

    /* Discarded ahead of the walk, where pages may have come already. */
    fill(at, 8 * MIB, 1);
    SYS(madvise(at + 8 * MIB, 5 * MIB, MADV_DONTNEED));
    verify_zero(at + 9 * MIB, 2 * MIB);
    fill_from(at + 8 * MIB, 4 * MIB, 1, 8 * MIB / PAGE);

    /* Replaced ahead of it. */
    unsigned char *other = map(14 * MIB);
    fill(other, 8 * MIB, 3);
    CHECK(mmap(other + 9 * MIB, 3 * MIB, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == other + 9 * MIB);
    fill_from(other + 8 * MIB, 2 * MIB, 3, 8 * MIB / PAGE);
    verify(other, 10 * MIB, 3);
    verify_zero(other + 10 * MIB, 4 * MIB);
    SYS(munmap(other, 14 * MIB));
    fill_from(at + 12 * MIB, 2 * MIB, 1, 12 * MIB / PAGE);

    /* A child goes on where its parent was. */
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(at, 14 * MIB, 1);
        verify_zero(at + 14 * MIB, MIB);
        fill_from(at + 14 * MIB, bytes - 14 * MIB, 2, 0);
        verify(at, 14 * MIB, 1);
        verify_from(at + 14 * MIB, bytes - 14 * MIB, 2, 0);
        _exit(0);
    }
    fill_from(at + 14 * MIB, 4 * MIB, 1, 14 * MIB / PAGE);
    wait_ok(child);

    /* Moved, with what is ahead of the walk. */
    unsigned char *to = mremap(at, bytes, bytes + MIB, MREMAP_MAYMOVE);
    CHECK(to != MAP_FAILED);
    fill_from(to + 18 * MIB, 6 * MIB, 1, 18 * MIB / PAGE);
    verify(to, bytes, 1);
    verify_zero(to + bytes, MIB);

    /* Several walk, with others' memory between and behind them. */
    unsigned char *shared = map(3 * APART);
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++)
        PTHREAD(pthread_create(&threads[i], NULL, walk_part, shared + i * APART));
    for (size_t i = 0; i < 3; i++)
        PTHREAD(pthread_join(threads[i], NULL));
    for (size_t i = 0; i < 3; i++) {
        verify(shared + i * APART, WALKED, 5);
        verify_zero(shared + i * APART + WALKED, APART - WALKED);
    }
    verify(to, bytes, 1);
    return 0;
}
