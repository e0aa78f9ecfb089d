/* A program under a filter that kills for what it does not call itself: marks on a range with a hole, and a
 * move of what is marked that fails, take no other system call. */
#include "filter.h"

enum { FIRST = 37, HOLE = 20, REST = 455 };

static const struct sock_filter code[] = {
    NUMBER, KILL(openat), KILL(open), KILL(prlimit64), KILL(mincore), OTHERWISE(SECCOMP_RET_ALLOW),
};

int main(void)
{
    unsigned char *at = map((FIRST + HOLE + REST) * PAGE), *rest = at + (FIRST + HOLE) * PAGE;
    fill(at, (FIRST + HOLE + REST) * PAGE, 1);
    churn();
    SYS(munmap(at + FIRST * PAGE, HOLE * PAGE));
    struct sock_fprog program = PROGRAM(code);
    if (!set_filter(&program)) {
        fprintf(stderr, "no filter is allowed here\n");
        return 77;
    }
    CHECK(madvise(at, (FIRST + HOLE + REST) * PAGE, MADV_WIPEONFORK) == -1 && errno == ENOMEM);
    /* Onto itself. */
    CHECK(mremap(rest, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, rest + PAGE) == MAP_FAILED);
    CHECK(errno == EINVAL);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify_zero(at, FIRST * PAGE);
        verify_zero(rest, REST * PAGE);
        _exit(0);
    }
    wait_ok(child);
    verify_from(at, FIRST * PAGE, 1, 0);
    verify_from(rest, REST * PAGE, 1, FIRST + HOLE);
    return 0;
}
