/* A timer's handler jumps out of whatever the program was doing, many times, in
 * the middle of faults too. Nothing may stay locked. */
#include "hazard.h"
#include <setjmp.h>
#include <sys/time.h>

static sigjmp_buf out;
static unsigned char *at;
static const size_t bytes = 4 * QUARTER;

static void on_alarm(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}

int main(void)
{
    at = map(bytes);
    fill(at, bytes, 1);
    churn();
    CHECK(signal(SIGALRM, on_alarm) != SIG_ERR);
    volatile int jumps = 0;
    volatile size_t page = 0;
    while (jumps < 40) {
        if (sigsetjmp(out, 1)) {
            jumps++;
            continue;
        }
        struct itimerval timer = {.it_value.tv_usec = 200 + jumps * 37 % 900};
        SYS(setitimer(ITIMER_REAL, &timer, NULL));
        for (;; page = (page + 61) % (bytes / PAGE)) {
            uint64_t got = ((volatile uint64_t *)at)[page * WORDS + 9];
            CHECKF(got == pattern(1, page, 9), "page %zu: %#llx", page, (unsigned long long)got);
            ((volatile uint64_t *)at)[page * WORDS + 9] = got;
        }
    }
    churn();
    verify(at, bytes, 1);
    /* The same out of a program's own fault handler, over and over. */
    CHECK(signal(SIGSEGV, on_alarm) != SIG_ERR);
    for (volatile int i = 0; i < 50; i++)
        if (sigsetjmp(out, 1) == 0) {
            *(volatile char *)(0x10ul + (size_t)i * PAGE / 100);
            FAIL("reading address 16 did not fault");
        }
    verify(at, bytes, 1);
    return 0;
}
