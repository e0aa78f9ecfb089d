/* Forks that the C library makes for the program, which no name of the program's leads to:
 * forkpty(3), and daemon(3), whose parent ends at once. The child must have all its memory. */
#include "hazard.h"
#include <pty.h>

int main(void)
{
    size_t bytes = 4 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();

    int terminal;
    pid_t child = (pid_t)SYS(forkpty(&terminal, NULL, NULL, NULL));
    if (child == 0) {
        verify(at, bytes, 1);
        _exit(0);
    }
    wait_ok(child);
    SYS(close(terminal));
    fill(at, bytes, 2);
    churn();

    int channel[2];
    SYS(pipe(channel));
    child = (pid_t)SYS(fork());
    if (child == 0) {
        SYS(daemon(1, 1));
        verify(at, bytes, 2);
        write_all(channel[1], "k", 1);
        _exit(0);
    }
    SYS(close(channel[1]));
    wait_ok(child); /* the daemon's parent */
    char answer;
    CHECKF(read(channel[0], &answer, 1) == 1, "the daemon did not come to its end");
    verify(at, bytes, 2);
    return 0;
}
