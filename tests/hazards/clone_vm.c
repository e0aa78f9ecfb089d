/* A second process in the same memory (clone with CLONE_VM): what one writes
 * the other sees, and the end of one is not the end of the other's memory. */
#include "hazard.h"
#include <sched.h>

static unsigned char *at;
static const size_t bytes = 6 * QUARTER;

static int other(void *argument)
{
    (void)argument;
    for (size_t page = 0; page < bytes / PAGE; page += 2) {
        verify_from(at + page * PAGE, PAGE, 1, page);
        fill_from(at + page * PAGE, PAGE, 2, page);
    }
    return 0;
}

int main(void)
{
    at = map(bytes);
    fill(at, bytes, 1);
    churn();
    static char stack[64 * KIB] __attribute__((aligned(64)));
    for (int flags = 0; flags < 2; flags++) {
        pid_t child = (pid_t)SYS(clone(other, stack + sizeof stack,
                                       CLONE_VM | SIGCHLD | (flags ? CLONE_FILES : 0), NULL));
        for (size_t page = 1; page < bytes / PAGE; page += 2)
            verify_from(at + page * PAGE, PAGE, 1, page);
        wait_ok(child);
        churn();
        for (size_t page = 0; page < bytes / PAGE; page++)
            verify_from(at + page * PAGE, PAGE, page % 2 ? 1 : 2, page);
        fill(at, bytes, 1);
        churn();
    }
    return 0;
}
