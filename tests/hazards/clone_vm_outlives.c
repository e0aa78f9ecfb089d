/* A process that shares another's memory (clone with CLONE_VM) and outlives
 * it: the memory is there to the end, and so is what it asks for. Also where the
 * other is under a filter on system calls that kills. */
#include "filter.h"
#include "outlives.h"

/* From here on the calling thread may end itself, and little else. */
static void forbid(void)
{
    struct sock_filter code[] = {
        NUMBER,
        ALLOW(write), ALLOW(exit_group), ALLOW(futex), ALLOW(rt_sigprocmask),
        ALLOW(gettid), ALLOW(getpid), ALLOW(sched_yield), ALLOW(clone),
        OTHERWISE(SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = PROGRAM(code);
    CHECK(set_filter(&program));
}

int main(void)
{
    for (int how = 0; how < 8; how++) {
        SYS(pipe(ended));
        SYS(pipe(checked));
        pid_t first = (pid_t)SYS(fork());
        if (first == 0) {
            at = map(bytes);
            fill(at, bytes, 1);
            churn();
            close(ended[0]);
            SYS(pipe(ended));
            clone_vm(goes_on, NULL, how == 3 ? CLONE_FS : 0);
            if (how == 4) {
                forbid();
                churn();
            }
            if (how == 0 || how == 4)
                _exit(0);
            if (how == 5)
                execl("/bin/true", "true", NULL);
            if (how == 6)
                execve("/bin/true", (char *[]){"true", NULL}, environ);
            if (how == 7)
                syscall(SYS_execve, "/bin/true", (char *[]){"true", NULL}, environ);
            if (how == 1)
                syscall(SYS_exit_group, 0);
            exit(0);
        }
        close(ended[0]);
        close(ended[1]);
        close(checked[1]);
        wait_ok(first);
        char byte;
        CHECK(read(checked[0], &byte, 1) == 1);
        close(checked[0]);
    }
    return 0;
}
