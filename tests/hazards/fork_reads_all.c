/* A forked child reads all of its parent's memory, the absent part too, after
 * the parent has changed and released its own copy. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 6 * QUARTER;
    unsigned char *at = map(bytes), *untouched = map(QUARTER);
    fill(at, bytes, 1);
    churn();
    int go[2];
    SYS(pipe(go));
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        char byte;
        read_all(go[0], &byte, 1); /* the parent has overwritten and unmapped by now */
        verify(at, bytes, 1);
        verify_zero(untouched, QUARTER);
        churn();
        verify(at, bytes, 1);
        _exit(0);
    }
    fill(at, bytes, 2);
    churn();
    verify(at, bytes, 2);
    SYS(munmap(at, bytes / 2));
    write_all(go[1], "x", 1);
    wait_ok(child);
    verify_from(at + bytes / 2, bytes / 2, 2, bytes / 2 / PAGE);
    return 0;
}
