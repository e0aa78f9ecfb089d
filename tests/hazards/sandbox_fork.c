/* A thread under a filter forks: the child and all that it creates are under it as well. The
 * filter forbids what a memory manager needs, by refusing it and by death; the child has all
 * its memory all the same, and so have its children, and the parent goes on. */
#include "filter.h"

static const size_t bytes = 6 * QUARTER;

static bool filter(uint32_t otherwise)
{
    struct sock_filter code[] = {
        NUMBER,
        ALLOW(read), ALLOW(write), ALLOW(exit_group), ALLOW(futex), ALLOW(rt_sigprocmask),
        ALLOW(gettid), ALLOW(getpid), ALLOW(sched_yield), ALLOW(clock_nanosleep),
        ALLOW(clone), ALLOW(set_robust_list), ALLOW(wait4), ALLOW(rseq),
        OTHERWISE(otherwise),
    };
    struct sock_fprog program = PROGRAM(code);
    return set_filter(&program);
}

static void sandboxed(uint32_t otherwise)
{
    unsigned char *at = map(bytes), *fresh = map(2 * QUARTER);
    fill(at, bytes, 1);
    churn();
    if (!filter(otherwise))
        _exit(77);
    churn();
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(at, bytes, 1);
        verify_zero(fresh, QUARTER);
        fill(at, bytes / 2, 2);
        pid_t second = (pid_t)SYS(fork());
        if (second == 0) {
            verify(at, bytes / 2, 2);
            fill(fresh, 2 * QUARTER, 3);
            churn();
            verify(fresh, 2 * QUARTER, 3);
            _exit(0);
        }
        wait_ok(second);
        verify(at, bytes / 2, 2);
        verify_zero(fresh, 2 * QUARTER);
        _exit(0);
    }
    fill(at, bytes, 4);
    churn();
    verify(at, bytes, 4);
    wait_ok(child);
    churn();
    verify(at, bytes, 4);
    _exit(0);
}

int main(void)
{
    unsigned char *own = map(bytes);
    fill(own, bytes, 5);
    churn();
    static const uint32_t actions[] = {SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_KILL_PROCESS};
    for (size_t i = 0; i < 2; i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0)
            sandboxed(actions[i]);
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
            skip("seccomp filters are not allowed here");
        CHECKF(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %zu: status %#x", i, (unsigned)status);
    }
    churn();
    verify(own, bytes, 5);
    return 0;
}
