/* A filter for all threads at once (SECCOMP_FILTER_FLAG_TSYNC), as browsers and container
 * tools install it: whatever a memory manager in the process does by system calls ends with
 * it, at worst by the whole program being killed. Memory must go on working, in threads that
 * existed before, too; and in strict mode, which allows a thread its own end only. */
#include "filter.h"

static const size_t bytes = 6 * QUARTER;
static unsigned char *at, *fresh;
static atomic_int step;

static long filter(uint32_t otherwise, struct sock_fprog *none)
{
    struct sock_filter code[] = {
        NUMBER,
        ALLOW(read), ALLOW(write), ALLOW(exit), ALLOW(exit_group), ALLOW(futex), ALLOW(rt_sigprocmask),
        ALLOW(madvise), ALLOW(munmap), ALLOW(rseq), ALLOW(set_robust_list),
        OTHERWISE(otherwise),
    };
    struct sock_fprog program = PROGRAM(code);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, none ? none : &program);
}

static void *walker(void *unused)
{
    while (atomic_load(&step) == 0)
        verify(at, bytes, 1);
    verify(at, bytes, 1);
    fill(at, bytes, 2);
    return unused;
}

/* Every call but a few: refused, or the death of all. */
static void sandboxed(uint32_t otherwise)
{
    at = map(bytes);
    fresh = map(QUARTER);
    fill(at, bytes, 1);
    churn();
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, walker, NULL));
    SYS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (filter(otherwise, NULL) == -1) {
        CHECKF(errno == ENOSYS || errno == EINVAL, "seccomp: %s", strerror(errno));
        _exit(77);
    }
    if (otherwise != SECCOMP_RET_KILL_PROCESS)
        CHECK(mmap(NULL, QUARTER, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EPERM);
    churn();
    atomic_store(&step, 1);
    PTHREAD(pthread_join(thread, NULL));
    verify(at, bytes, 2);
    verify_zero(fresh, QUARTER);
    fill(fresh, QUARTER, 3);
    churn();
    verify(fresh, QUARTER, 3);
    verify(at, bytes, 2);
    SYS(munmap(at, bytes));
    _exit(0);
}

/* Strict mode: read, write, and the end of the only thread. */
static void strict(void)
{
    at = map(bytes);
    fill(at, bytes, 4);
    churn();
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) == -1)
        syscall(SYS_exit, 77);
    for (size_t page = 0; page < bytes / PAGE; page++)
        if (*(uint64_t *)(at + page * PAGE) != pattern(4, page, 0))
            syscall(SYS_exit, 1);
    syscall(SYS_exit, 0);
}

int main(void)
{
    unsigned char *own = map(bytes);
    fill(own, bytes, 5);
    churn();
    /* To ask whether the kernel knows the flag installs nothing. */
    struct sock_fprog *nowhere = (void *)8;
    CHECK(filter(0, nowhere) == -1);
    static const uint32_t actions[] = {SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_KILL_PROCESS};
    for (size_t i = 0; i < 3; i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            if (i < 2)
                sandboxed(actions[i]);
            strict();
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
            skip("seccomp with SECCOMP_FILTER_FLAG_TSYNC is not allowed here");
        CHECKF(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %zu: status %#x", i, (unsigned)status);
    }
    churn();
    verify(own, bytes, 5);
    return 0;
}
