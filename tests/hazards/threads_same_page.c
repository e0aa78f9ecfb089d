/* Many threads fault on the same absent pages at the same moment; all of them
 * go on, all see the same content, all their additions arrive. */
#include "hazard.h"

enum { THREADS = 6, ROUNDS = 4 };
static const size_t pages = 200;
static uint64_t *at;
static pthread_barrier_t barrier;

static void *racer(void *argument)
{
    bool first = argument != NULL;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        if (first)
            churn();
        pthread_barrier_wait(&barrier);
        for (size_t page = 0; page < pages; page++) {
            uint64_t *words = at + page * WORDS;
            CHECK(__atomic_load_n(&words[1], __ATOMIC_RELAXED) == pattern(1, page, 1));
            CHECK(__atomic_load_n(&words[511], __ATOMIC_RELAXED) == pattern(1, page, 511));
            __atomic_fetch_add(&words[0], 1, __ATOMIC_RELAXED);
        }
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(void)
{
    at = map(pages * PAGE);
    fill(at, pages * PAGE, 1);
    PTHREAD(pthread_barrier_init(&barrier, NULL, THREADS));
    pthread_t thread[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&thread[i], NULL, racer, (void *)(uintptr_t)(i == 0)));
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_join(thread[i], NULL));
    for (size_t page = 0; page < pages; page++)
        CHECKF(at[page * WORDS] == pattern(1, page, 0) + THREADS * ROUNDS, "page %zu", page);
    return 0;
}
