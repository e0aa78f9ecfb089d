/* A filter for all threads that nobody can see coming: installed by the instruction itself,
 * not by the C library. What a memory manager in the process then has no right to do, it cannot
 * do: such a program goes on right, or ends at once and says so. It neither hangs nor reads
 * what it never wrote. */
#include "filter.h"
#include "instruction.h"

static void sandboxed(void)
{
    size_t bytes = 6 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    struct sock_filter code[] = {
        NUMBER,
        REFUSE(ioctl),
        OTHERWISE(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = PROGRAM(code);
    SYS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (instruction(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, (long)&program, 0, 0, 0)
        != 0)
        _exit(77);
    verify(at, bytes, 1);
    fill(at, bytes, 2);
    churn();
    verify(at, bytes, 2);
    _exit(0);
}

int main(void)
{
    unsigned char *own = map(6 * QUARTER);
    fill(own, 6 * QUARTER, 5);
    churn();
    int ends[2], status;
    SYS(pipe(ends));
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        SYS(dup2(ends[1], STDERR_FILENO));
        sandboxed();
    }
    SYS(close(ends[1]));
    char said[4096] = "";
    for (size_t n = 0; n < sizeof said - 1;) {
        ssize_t got = SYS(read(ends[0], said + n, sizeof said - 1 - n));
        if (got == 0)
            break;
        n += (size_t)got;
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip("seccomp with SECCOMP_FILTER_FLAG_TSYNC is not allowed here");
    bool ended = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(said, "the program cannot go on");
    CHECKF(ended || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "status %#x: %s", (unsigned)status, said);
    churn();
    verify(own, 6 * QUARTER, 5);
    return 0;
}
