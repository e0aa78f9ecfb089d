/* More threads fault at once than anybody keeps a list for, while another one
 * changes the address space: until that is known no fault can be served, and
 * the kernel tells of faults first. Every thread gets its pages. */
#include "hazard.h"
#include <sys/sysinfo.h>

enum { PAGES = 24, ROUNDS = 6, MOST = 1500 };
static unsigned char *all;
static size_t count;
static pthread_barrier_t round_begins;
static atomic_size_t left;

static void *worker(void *argument)
{
    size_t nth = (size_t)(uintptr_t)argument;
    for (size_t round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&round_begins);
        /* Pages of all threads lie side by side, so all of them are away. */
        for (size_t page = 0; page < PAGES; page++) {
            uint64_t *at = (uint64_t *)(all + (page * count + nth) * PAGE);
            CHECKF(at[7] == (round == 0 ? 0 : round * 1000 + nth), "%zu of thread %zu in round %zu",
                   (size_t)at[7], nth, round);
            at[7] = (round + 1) * 1000 + nth;
        }
        atomic_fetch_sub(&left, 1);
    }
    return NULL;
}

int main(void)
{
    count = 64 * ((size_t)get_nprocs() + 4);
    if (count > MOST)
        count = MOST;
    all = map(PAGES * count * PAGE);
    PTHREAD(pthread_barrier_init(&round_begins, NULL, (unsigned)count + 1));
    pthread_attr_t small;
    PTHREAD(pthread_attr_init(&small));
    PTHREAD(pthread_attr_setstacksize(&small, 64 * KIB));
    static pthread_t threads[MOST];
    for (size_t i = 0; i < count; i++)
        PTHREAD(pthread_create(&threads[i], &small, worker, (void *)(uintptr_t)i));
    for (size_t round = 0; round < ROUNDS; round++) {
        churn();
        atomic_store(&left, count);
        pthread_barrier_wait(&round_begins);
        while (atomic_load(&left) != 0) {
            unsigned char *other = map(4 * PAGE);
            other[0] = 1;
            SYS(madvise(other, PAGE, MADV_DONTNEED));
            SYS(munmap(other, 4 * PAGE));
        }
    }
    for (size_t i = 0; i < count; i++)
        PTHREAD(pthread_join(threads[i], NULL));
    return 0;
}
