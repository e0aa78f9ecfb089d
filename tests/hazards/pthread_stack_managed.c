/* Threads whose stacks stand in ordinary allocations (malloc, mmap): the stack
 * of a sleeping thread is evicted, and comes back under its frames. */
#include "hazard.h"

enum { THREADS = 4 };
static pthread_barrier_t barrier;

static uint64_t deep(int depth, uint64_t seed)
{
    volatile uint64_t frame[300]; /* more than half a page a frame */
    for (int i = 0; i < 300; i++)
        frame[i] = mix(seed + (uint64_t)(depth * 300 + i));
    uint64_t below = 0;
    if (depth > 0) {
        below = deep(depth - 1, seed);
    } else {
        pthread_barrier_wait(&barrier); /* everyone is at the bottom: main churns */
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < 300; i++)
        CHECKF(frame[i] == mix(seed + (uint64_t)(depth * 300 + i)), "frame %d word %d", depth, i);
    return below + frame[7];
}

static void *worker(void *argument)
{
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    for (int round = 0; round < 2; round++)
        deep(80, seed + (uint64_t)round);
    return NULL;
}

int main(void)
{
    size_t stack_bytes = 1 * QUARTER;
    PTHREAD(pthread_barrier_init(&barrier, NULL, THREADS + 1));
    pthread_t thread[THREADS];
    void *stack[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        pthread_attr_t attributes;
        PTHREAD(pthread_attr_init(&attributes));
        stack[i] = i % 2 ? map(stack_bytes) : aligned_alloc(64, stack_bytes);
        CHECK(stack[i]);
        PTHREAD(pthread_attr_setstack(&attributes, stack[i], stack_bytes));
        PTHREAD(pthread_create(&thread[i], &attributes, worker, (void *)(i * 1000)));
        PTHREAD(pthread_attr_destroy(&attributes));
    }
    for (int round = 0; round < 2; round++) {
        pthread_barrier_wait(&barrier);
        churn();
        churn();
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_join(thread[i], NULL));
    for (int i = 0; i < THREADS; i++)
        if (i % 2)
            SYS(munmap(stack[i], stack_bytes));
        else
            free(stack[i]);
    return 0;
}
