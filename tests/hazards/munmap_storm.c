/* Threads map, write, check and unmap as fast as they can while others fault:
 * addresses are reused at once, possibly while the evictor still looks at them. */
#include "hazard.h"

enum { THREADS = 4, ROUNDS = 10 };

static void *worker(void *argument)
{
    uint64_t id = (uint64_t)(uintptr_t)argument;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        size_t bytes = (64 + mix(id * 1000 + round) % 8 * 64) * KIB;
        unsigned char *at = map(bytes);
        verify_zero(at, bytes);
        fill(at, bytes, id * 1000 + round);
        if (round % 4 == 0) {
            SYS(munmap(at + bytes / 2, bytes / 4));
            verify(at, bytes / 2, id * 1000 + round);
            verify_from(at + bytes * 3 / 4, bytes / 4, id * 1000 + round, bytes * 3 / 4 / PAGE);
            /* What is between may be another thread's by now. */
            SYS(munmap(at + bytes * 3 / 4, bytes / 4));
            SYS(munmap(at, bytes / 2));
        } else {
            verify(at, bytes, id * 1000 + round);
            SYS(munmap(at, bytes));
        }
    }
    return NULL;
}

int main(void)
{
    size_t bytes = 2 * QUARTER;
    unsigned char *still = map(bytes);
    fill(still, bytes, 1);
    struct churner churner;
    churner_start(&churner);
    pthread_t thread[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&thread[i], NULL, worker, (void *)(i + 1)));
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_join(thread[i], NULL));
    churner_stop(&churner);
    verify(still, bytes, 1);
    return 0;
}
