/* Processes made without the C library's fork: _Fork, the fork and clone
 * system calls themselves. No atfork handler runs; memory is copied all the same. */
#include "hazard.h"
#include <sched.h>

static unsigned char *at;
static const size_t bytes = 6 * QUARTER;

static void check_child(uint64_t seed)
{
    verify(at, bytes, 1);
    fill(at, bytes, seed);
    churn();
    verify(at, bytes, seed);
    /* It has no help of its own; what it allocates is ordinary memory. */
    unsigned char *more = map(4 * QUARTER), *block = malloc(8 * QUARTER);
    CHECK(block);
    fill(more, 4 * QUARTER, seed + 1);
    fill(block, 8 * QUARTER, seed + 2);
    verify(more, 4 * QUARTER, seed + 1);
    verify(block, 8 * QUARTER, seed + 2);
    free(block);
    syscall(SYS_exit_group, 0);
}

int main(void)
{
    at = map(bytes);
    fill(at, bytes, 1);
    churn();
    pid_t child = (pid_t)SYS(_Fork());
    if (child == 0)
        check_child(2);
    wait_ok(child);
#ifdef SYS_fork
    child = (pid_t)SYS(syscall(SYS_fork));
    if (child == 0)
        check_child(3);
    wait_ok(child);
#endif
    child = (pid_t)SYS(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    if (child == 0)
        check_child(4);
    wait_ok(child);
    churn();
    verify(at, bytes, 1);
    return 0;
}
