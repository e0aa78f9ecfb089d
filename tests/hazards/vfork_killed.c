/* Processes that only borrow the program's memory (CLONE_VM, CLONE_VFORK) are killed while they mark it: the
 * program marks and forks as before. */
#include "hazard.h"
#include <sched.h>

enum { TIMES = 100 };

static const size_t BYTES = 2ul << 20;
static unsigned char *at;
static atomic_int borrower;
static atomic_bool over;

static int mark(void *nothing)
{
    (void)nothing;
    borrower = (int)syscall(SYS_getpid);
    for (;;) {
        madvise(at, PAGE, MADV_WIPEONFORK);
        madvise(at, PAGE, MADV_KEEPONFORK);
    }
    return 0;
}

static void *kill_them(void *nothing)
{
    for (unsigned delay = 0; !over; delay = (delay * 37 + 11) % 300) {
        int process = atomic_exchange(&borrower, 0);
        usleep(50 + delay);
        if (process > 0)
            kill(process, SIGKILL);
    }
    return nothing;
}

int main(void)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    pthread_t killer;
    at = map(BYTES);
    fill(at, BYTES, 1);
    churn();
    CHECK(pthread_create(&killer, NULL, kill_them, NULL) == 0);
    for (int time = 0; time < TIMES; time++) {
        int status, process = clone(mark, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
        CHECK(process > 0 && waitpid(process, &status, 0) == process);
        if (time % 10 != 0)
            continue;
        SYS(madvise(at, PAGE, MADV_KEEPONFORK));
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            verify(at, BYTES, 1);
            _exit(0);
        }
        wait_ok(child);
    }
    over = true;
    CHECK(pthread_join(killer, NULL) == 0);
    return 0;
}
