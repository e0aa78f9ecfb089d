/* After a fork both sides write to the same addresses at the same time; each
 * sees only its own. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 5 * QUARTER, pages = bytes / PAGE;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    pid_t child = (pid_t)SYS(fork());
    uint64_t own = child ? 2 : 3;
    for (size_t page = 0; page < pages; page++)
        if (page % 2 == own % 2) { /* parent the even pages, child the odd ones */
            verify_from(at + page * PAGE, PAGE, 1, page);
            fill_from(at + page * PAGE, PAGE, own, page);
        }
    churn();
    for (size_t page = 0; page < pages; page++)
        verify_from(at + page * PAGE, PAGE, page % 2 == own % 2 ? own : 1, page);
    /* Then the same pages on both sides. */
    fill(at, bytes, own + 10);
    churn();
    verify(at, bytes, own + 10);
    if (child == 0)
        _exit(0);
    wait_ok(child);
    verify(at, bytes, own + 10);
    return 0;
}
