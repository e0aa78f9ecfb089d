/* Forks while another thread makes processes by system calls of its own, and others map and unmap: who
 * reads of the one child may be busy with the other. Each child has all memory, and none waits for ever. */
#include "hazard.h"
#include <sched.h>

enum { FORKS = 30 };
static unsigned char *at;
static const size_t bytes = 3 * QUARTER;
static atomic_bool stop;

static void *forks_raw(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        pid_t child = (pid_t)SYS(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
        if (child == 0) {
            verify(at, bytes, 1);
            syscall(SYS_exit_group, 0);
        }
        wait_ok(child);
    }
    return NULL;
}

static void *maps(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        unsigned char *own = map(MIB);
        own[0] = 1;
        SYS(munmap(own, MIB));
        usleep(20); /* Without a pause it would be told that a child may have it as it was. */
    }
    return NULL;
}

int main(void)
{
    at = map(bytes);
    fill(at, bytes, 1);
    churn();
    void *(*const mains[])(void *) = {forks_raw, maps, maps, maps};
    enum { THREADS = sizeof mains / sizeof *mains };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&threads[i], NULL, mains[i], NULL));
    for (int i = 0; i < often(FORKS); i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            verify(at, bytes, 1);
            fill(at, bytes, 2);
            verify(at, bytes, 2);
            _exit(0);
        }
        wait_ok(child);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_join(threads[i], NULL));
    verify(at, bytes, 1);
    return 0;
}
