/* Threads with little stack map memory, and are the first to have as much that it is managed; they
 * fork, and move and unmap memory. */
#include "hazard.h"
#include <limits.h>

enum { THREADS = 3 };
static const size_t bytes = 6 * QUARTER;

static void *work(void *argument)
{
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    unsigned char *at = map(bytes);
    fill(at, bytes, seed);
    unsigned char *moved = mremap(at, bytes, 2 * bytes, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    verify(moved, bytes, seed);
    unsigned char *block = malloc(bytes);
    CHECK(block);
    memcpy(block, moved, bytes);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(moved, bytes, seed);
        fill(block, bytes, seed + 1);
        verify(block, bytes, seed + 1);
        _exit(0);
    }
    wait_ok(child);
    verify(block, bytes, seed);
    free(block);
    SYS(munmap(moved, 2 * bytes));
    return NULL;
}

int main(void)
{
    pthread_attr_t small;
    pthread_attr_init(&small);
    size_t stack = (size_t)sysconf(_SC_THREAD_STACK_MIN) + 8 * KIB;
    CHECK(pthread_attr_setstacksize(&small, stack) == 0);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], &small, work, (void *)(10 * (i + 1))) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
