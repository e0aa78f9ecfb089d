/* A process and its children fork at the same time, again and again: each fork's
 * parent and child have to do with one another alone. */
#include "hazard.h"

#define BYTES (5 * QUARTER)

static void forks(unsigned char *at, int depth)
{
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = (pid_t)SYS(fork());
        if (children[i] == 0) {
            if (depth > 1)
                forks(at, depth - 1);
            verify(at, BYTES, 1);
            _exit(0);
        }
    }
    for (int i = 0; i < 2; i++)
        wait_ok(children[i]);
}

int main(void)
{
    unsigned char *at = map(BYTES);
    fill(at, BYTES, 1);
    churn();
    forks(at, 2);
    verify(at, BYTES, 1);
    return 0;
}
