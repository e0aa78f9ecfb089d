/* Children of children, each with changes of its own, and several siblings
 * alive at once. */
#include "hazard.h"

static unsigned char *at;
static const size_t bytes = 3 * QUARTER;

static void check_generation(int depth)
{
    for (size_t page = 0; page < bytes / PAGE; page++) {
        int writer = (int)(page % 6) < depth ? (int)(page % 6) + 1 : 0;
        verify_from(at + page * PAGE, PAGE, (uint64_t)writer, page);
    }
}

int main(void)
{
    at = map(bytes);
    fill(at, bytes, 0);
    churn();
    int depth = 0;
    pid_t child = -1;
    while (depth < 4) {
        child = (pid_t)SYS(fork());
        if (child)
            break;
        depth++;
        for (size_t page = (size_t)depth - 1; page < bytes / PAGE; page += 6)
            fill_from(at + page * PAGE, PAGE, (uint64_t)depth, page);
        churn();
        check_generation(depth);
    }
    if (depth < 4) {
        wait_ok(child);
        check_generation(depth);
    }
    if (depth > 0)
        _exit(0);

    pid_t sibling[4];
    for (int i = 0; i < 4; i++) {
        sibling[i] = (pid_t)SYS(fork());
        if (sibling[i] == 0) {
            check_generation(0);
            fill(at, bytes, 40 + (uint64_t)i);
            churn();
            verify(at, bytes, 40 + (uint64_t)i);
            _exit(0);
        }
    }
    for (int i = 0; i < 4; i++)
        wait_ok(sibling[i]);
    check_generation(0);
    return 0;
}
