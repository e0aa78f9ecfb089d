/* The parent ends, or kills itself, as soon as fork() returns: the child has
 * everything all the same. */
#include "hazard.h"

#define BYTES (4 * QUARTER)

/* A process that forks and does not wait; its child reports through a pipe. */
static void orphan(unsigned char *at, int how)
{
    int ends[2];
    SYS(pipe2(ends, O_CLOEXEC));
    pid_t parent = (pid_t)SYS(fork());
    if (parent == 0) {
        close(ends[0]);
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            verify(at, BYTES, 1);
            churn();
            verify(at, BYTES, 1);
            write_all(ends[1], "well", 4);
            _exit(0);
        }
        if (how == SIGKILL)
            raise(SIGKILL);
        _exit(0);
    }
    close(ends[1]);
    int status;
    CHECK(SYS(waitpid(parent, &status, 0)) == parent);
    char said[8];
    ssize_t n = read(ends[0], said, sizeof said);
    CHECKF(n == 4, "the child of a parent that ended (%d) did not end well", how);
    close(ends[0]);
}

int main(void)
{
    unsigned char *at = map(BYTES);
    fill(at, BYTES, 1);
    churn();
    orphan(at, 0);
    orphan(at, SIGKILL);
    verify(at, BYTES, 1);
    return 0;
}
