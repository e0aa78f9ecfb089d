/* The kernel itself clears a word, and wakes who waits for it, when a thread has
 * ended (CLONE_CHILD_CLEARTID); the word is absent at that moment. */
#include "hazard.h"
#include <linux/futex.h>
#include <sched.h>
#include <time.h>

static int churns_and_ends(void *argument)
{
    (void)argument;
    churn();
    churn();
    return 0;
}

int main(void)
{
    static char stack[64 * KIB] __attribute__((aligned(64)));
    uint32_t *ended = map(64 * KIB);
    churn();
    for (uint32_t round = 1; round < 4; round++) {
        *ended = round;
        pid_t child = (pid_t)SYS(clone(churns_and_ends, stack + sizeof stack,
                                       CLONE_VM | CLONE_CHILD_CLEARTID | SIGCHLD, NULL, NULL, NULL, ended));
        struct timespec timeout = {.tv_sec = 30};
        while (__atomic_load_n(ended, __ATOMIC_ACQUIRE) != 0) {
            if (syscall(SYS_futex, ended, FUTEX_WAIT, round, &timeout, NULL, 0) == 0 || errno == EAGAIN)
                continue;
            FAIL("waiting for the end of a thread: %s", strerror(errno));
        }
        wait_ok(child);
    }
    return 0;
}
