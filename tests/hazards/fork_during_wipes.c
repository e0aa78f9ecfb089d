/* What a forked child is to find empty (MADV_WIPEONFORK) changes while other
 * threads fork by system calls of their own: what was not to be empty when the
 * copy was made has its content in the child, however soon it is marked. */
#include "hazard.h"
#include <sched.h>

#define GROUP (4 * PAGE)
#define GROUPS 128ul

static unsigned char *at;
static const size_t bytes = GROUPS * GROUP;

struct shared {
    /* Odd while a thread is at the group. */
    _Atomic uint64_t changes[GROUPS];
    uint64_t before[GROUPS], after[GROUPS];
    atomic_int go;
};
static struct shared *shared;
static atomic_bool ended;

static void *mark(void *argument)
{
    (void)argument;
    for (size_t i = 0; !ended; i++) {
        size_t group = i * 37 % GROUPS;
        unsigned char *here = at + group * GROUP;
        shared->changes[group]++;
        SYS(madvise(here, GROUP, MADV_WIPEONFORK));
        sched_yield();
        SYS(madvise(here, GROUP, MADV_KEEPONFORK));
        shared->changes[group]++;
    }
    return NULL;
}

static void check_child(void)
{
    while (!shared->go)
        usleep(100);
    for (size_t group = 0; group < GROUPS; group++)
        if (shared->before[group] % 2 == 0 && shared->before[group] == shared->after[group])
            verify_from(at + group * GROUP, GROUP, 1, group * GROUP / PAGE);
    syscall(SYS_exit_group, 0);
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    at = map(bytes);
    fill(at, bytes, 1);
    churn();
    pthread_t marks;
    PTHREAD(pthread_create(&marks, NULL, mark, NULL));
    for (int round = 0; round < 24; round++) {
        shared->go = 0;
        for (size_t group = 0; group < GROUPS; group++)
            shared->before[group] = shared->changes[group];
        pid_t child = (pid_t)(round % 4 == 3   ? SYS(fork())
                              : round % 4 == 2 ? SYS(_Fork())
                              : round % 4 == 1 ? SYS(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))
                                               : SYS(syscall(SYS_fork)));
        if (child == 0)
            check_child();
        for (size_t group = 0; group < GROUPS; group++)
            shared->after[group] = shared->changes[group];
        shared->go = 1;
        wait_ok(child);
        if (round % 8 == 0)
            churn();
    }
    ended = true;
    PTHREAD(pthread_join(marks, NULL));
    verify(at, bytes, 1);
    return 0;
}
