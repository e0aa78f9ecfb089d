/* Threads with the smallest stacks that there may be fork: a child begins on such a stack. */
#include "hazard.h"

enum { THREADS = 2, FORKS = 3 };
static const size_t bytes = 6 * QUARTER;
static unsigned char *memory;

static void *forks(void *argument)
{
    (void)argument;
    for (int i = 0; i < FORKS; i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            verify(memory, bytes, 7);
            fill(memory, QUARTER, 8);
            verify(memory, QUARTER, 8);
            _exit(0);
        }
        wait_ok(child);
    }
    return NULL;
}

int main(void)
{
    memory = map(bytes);
    fill(memory, bytes, 7);
    churn();
    size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        pthread_attr_t small;
        pthread_attr_init(&small);
        PTHREAD(pthread_attr_setstacksize(&small, least + i * 4 * KIB));
        PTHREAD(pthread_create(&threads[i], &small, forks, NULL));
    }
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_join(threads[i], NULL));
    verify(memory, bytes, 7);
    return 0;
}
