/* A program under a filter that kills for every call but its own ends while another process goes on
 * with its memory (clone with CLONE_VM), or has ended, or was never made. It ends as it asked to,
 * whichever way that is, and who goes on has all of the memory. So where the one under the filter is
 * the other process, which ends first. */
#include "filter.h"
#include "outlives.h"

enum way { BY__EXIT, BY_EXIT, BY_RETURN, BY_SYSCALL, BY_EXEC, WAYS };
enum other { GOES_ON, HAS_ENDED, NEVER_MADE, ENDS_FIRST, OTHERS };

/* From here on the calling thread may end its process, and nothing else. */
static void forbid(void)
{
    static const struct sock_filter code[] = {
        NUMBER,
        ALLOW(exit_group),
        OTHERWISE(SECCOMP_RET_KILL_PROCESS),
    };
    static const struct sock_fprog program = PROGRAM(code);
    if (!set_filter(&program))
        _exit(77);
}

/* The same for who executes another program, which needs more; but none of these. */
static void forbid_most(void)
{
    static const struct sock_filter code[] = {
        NUMBER,
        KILL(futex), KILL(getpid), KILL(gettid), KILL(sched_yield), KILL(rt_sigprocmask),
        KILL(ioctl), KILL(kcmp), KILL(kill), KILL(madvise), KILL(clock_nanosleep),
        KILL(nanosleep), KILL(prctl), KILL(userfaultfd), KILL(write), KILL(clone), KILL(poll),
        OTHERWISE(SECCOMP_RET_ALLOW),
    };
    static const struct sock_fprog program = PROGRAM(code);
    if (!set_filter(&program))
        _exit(77);
}

static int ends_at_once(void *argument)
{
    (void)argument;
    syscall(SYS_exit_group, 0);
    return 0;
}

static void end(enum way way)
{
    switch (way) {
    case BY_EXIT:
    case BY_RETURN:
        exit(0);
    case BY_SYSCALL:
        syscall(SYS_exit_group, 0);
        break;
    case BY_EXEC:
        execve("/bin/true", (char *[]){"true", NULL}, (char *[]){NULL});
        break;
    default:
        _exit(0);
    }
    _exit(3);
}

static int filtered(void *argument)
{
    enum way way = *(enum way *)argument;
    /* What runs at the end of a program is in memory that both have: once is enough. */
    if (way == BY_EXIT || way == BY_RETURN)
        way = BY__EXIT;
    if (way == BY_EXEC)
        forbid_most();
    else
        forbid();
    end(way);
    return 0;
}

static int first(enum way way, enum other other)
{
    at = map(bytes);
    fill(at, bytes, 1);
    churn();
    if (other == GOES_ON) {
        close(ended[0]);
        SYS(pipe(ended));
        clone_vm(goes_on, NULL, 0);
    } else if (other == HAS_ENDED) {
        pid_t process = clone_vm(ends_at_once, NULL, 0);
        wait_ok(process);
    } else if (other == ENDS_FIRST) {
        pid_t process = clone_vm(filtered, &way, 0);
        wait_ok(process);
        verify(at, bytes, 1);
        churn();
        verify(at, bytes, 1);
        return 0;
    }
    if (way == BY_EXEC)
        forbid_most();
    else
        forbid();
    churn();
    if (way != BY_RETURN)
        end(way);
    return 0;
}

int main(void)
{
    unsigned char *own = map(bytes);
    fill(own, bytes, 5);
    churn();
    for (int i = 0; i < WAYS * OTHERS; i++) {
        enum way way = i % WAYS;
        enum other other = i / WAYS;
        SYS(pipe(ended));
        SYS(pipe(checked));
        pid_t child = (pid_t)SYS(fork());
        if (child == 0)
            return first(way, other);
        close(ended[0]);
        close(ended[1]);
        close(checked[1]);
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
            skip("seccomp filters are not allowed here");
        CHECKF(WIFEXITED(status) && WEXITSTATUS(status) == 0, "way %d, other %d: status %#x", way, other,
               (unsigned)status);
        char byte;
        CHECKF(read(checked[0], &byte, 1) == (other == GOES_ON), "way %d, other %d", way, other);
        close(checked[0]);
    }
    churn();
    verify(own, bytes, 5);
    return 0;
}
