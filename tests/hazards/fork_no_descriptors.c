/* A sandbox: the process may open no file any more, for good. It can still touch its memory, fork, and
 * have a child that finds all of it. */
#include "hazard.h"

#include <sys/resource.h>

int main(void)
{
    const size_t bytes = 6 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    const struct rlimit none = {0, 0};
    SYS(setrlimit(RLIMIT_NOFILE, &none));
    churn();
    verify(at, bytes, 1);
    for (int i = 0; i < 3; i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            verify(at, bytes, 1);
            fill(at, bytes, 2);
            churn();
            verify(at, bytes, 2);
            _exit(0);
        }
        wait_ok(child);
        verify(at, bytes, 1);
    }
    return 0;
}
