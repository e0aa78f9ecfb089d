/* Threads come and go by the dozen, each with large memory of its own that it
 * maps, evicts, checks and releases; thread stacks are ordinary ones. */
#include "hazard.h"

enum { AT_ONCE = 24, GENERATIONS = 3 };

/* All of a generation have their memory at the same time: one after the other they fit. */
static pthread_barrier_t filled;

static void *worker(void *argument)
{
    uint64_t id = (uint64_t)(uintptr_t)argument;
    size_t bytes = 128 * KIB;
    unsigned char *mine = map(bytes), *heap = malloc(bytes);
    CHECK(heap);
    fill(mine, bytes, id);
    fill_bytes(heap, bytes / 4, id + 1);
    pthread_barrier_wait(&filled);
    verify(mine, bytes, id);
    verify_bytes(heap, bytes / 4, id + 1);
    free(heap);
    SYS(munmap(mine, bytes));
    return NULL;
}

int main(void)
{
    PTHREAD(pthread_barrier_init(&filled, NULL, AT_ONCE));
    pthread_t thread[AT_ONCE];
    for (int generation = 0; generation < GENERATIONS; generation++) {
        for (uintptr_t i = 0; i < AT_ONCE; i++)
            PTHREAD(pthread_create(&thread[i], NULL, worker, (void *)(i * 7 + 1)));
        for (int i = 0; i < AT_ONCE; i++)
            PTHREAD(pthread_join(thread[i], NULL));
    }
    return 0;
}
