/* Workers that are forked from a program before it has much memory, and have much
 * of their own afterwards, beside what they have in common with it: that stays what
 * it was, in each of them. One is forked by the kernel's call, of which nobody
 * else is told; the program itself has much memory in the end. */
#include "hazard.h"

static unsigned char *inherited;
static const size_t few = 2 * QUARTER, many = 8 * QUARTER;

static void work(uint64_t seed)
{
    unsigned char *own = map(many);
    fill(own, many, seed);
    churn();
    verify(inherited, few, 1);
    verify(own, many, seed);
    /* Half of what is in common becomes its own. */
    fill(inherited, few / 2, seed + 1);
    churn();
    verify(inherited, few / 2, seed + 1);
    verify(own, many, seed);
    SYS(munmap(own, many));
    fill(inherited, few / 2, 1);
}

int main(void)
{
    inherited = map(few);
    fill(inherited, few, 1);
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = (pid_t)(i == 2 ? syscall(SYS_fork) : fork());
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            if (i != 2)
                work((uint64_t)(10 * (i + 1)));
            else
                pause();
            _exit(0);
        }
    }
    for (int i = 0; i < 2; i++)
        wait_ok(children[i]);
    verify(inherited, few, 1);
    work(100);
    SYS(kill(children[2], SIGKILL));
    SYS(waitpid(children[2], NULL, 0));
    work(200);
    return 0;
}
