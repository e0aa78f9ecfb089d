/* A process that shares another's memory (clone with CLONE_VM) and outlives
 * it: the memory is there to the end, and so is what it asks for. Also where the
 * other is under a filter on system calls that kills. */
#include "hazard.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>

#define ALLOW(call)                                                            \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1),                     \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static unsigned char *at;
static const size_t bytes = 6 * QUARTER;
static char stack[64 * KIB] __attribute__((aligned(64)));
/* Its end ends before the other's. */
static int ended[2], checked[2];

/* From here on the calling thread may end itself, and little else. */
static void forbid(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(write), ALLOW(exit_group), ALLOW(futex), ALLOW(rt_sigprocmask),
        ALLOW(gettid), ALLOW(getpid), ALLOW(sched_yield), ALLOW(clone),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    SYS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    SYS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

static int other(void *argument)
{
    (void)argument;
    char byte;
    close(ended[1]);
    /* Until the other is gone. */
    CHECK(read(ended[0], &byte, 1) == 0);
    usleep(20000);
    verify(at, bytes, 1);
    unsigned char *more = map(4 * QUARTER);
    fill(more, 4 * QUARTER, 2);
    verify(more, 4 * QUARTER, 2);
    CHECK(write(checked[1], "k", 1) == 1);
    syscall(SYS_exit_group, 0);
    return 0;
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
            if (how == 3)
                SYS(clone(other, stack + sizeof stack, CLONE_VM | CLONE_FS | SIGCHLD, NULL));
            else
                SYS(clone(other, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL));
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
