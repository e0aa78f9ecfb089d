/* MADV_DONTFORK and MADV_WIPEONFORK: the child has nothing there, or zeros;
 * the parent keeps its content. */
#include "hazard.h"
#include <setjmp.h>

static sigjmp_buf out;
static void on_fault(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}

int main(void)
{
    size_t bytes = 2 * QUARTER;
    unsigned char *secret = map(bytes), *wiped = map(bytes), *plain = map(bytes);
    fill(secret, bytes, 1);
    fill(wiped, bytes, 2);
    fill(plain, bytes, 3);
    SYS(madvise(secret, bytes, MADV_DONTFORK));
    SYS(madvise(wiped, bytes / 4, MADV_WIPEONFORK));
    SYS(syscall(SYS_madvise, wiped + bytes / 4, bytes / 4, MADV_WIPEONFORK));
    for (int round = 0; round < 3; round++) {
        if (round != 1)
            churn();
        /* The last one past the C library. */
        pid_t child = (pid_t)(round < 2 ? SYS(fork()) : SYS(syscall(SYS_fork)));
        if (child == 0) {
            CHECK(signal(SIGSEGV, on_fault) != SIG_ERR);
            verify(plain, bytes, 3);
            verify_zero(wiped, bytes / 2);
            verify_from(wiped + bytes / 2, bytes / 2, 2, bytes / 2 / PAGE);
            if (sigsetjmp(out, 1) == 0) {
                *(volatile unsigned char *)secret;
                FAIL("the child can read memory marked MADV_DONTFORK");
            }
            churn();
            fill(wiped, bytes, 4);
            churn();
            verify(wiped, bytes, 4);
            _exit(0);
        }
        wait_ok(child);
        verify(secret, bytes, 1);
        verify(wiped, bytes, 2);
    }
    SYS(madvise(secret, bytes, MADV_DOFORK));
    SYS(madvise(wiped, bytes / 2, MADV_KEEPONFORK));
    churn();
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(secret, bytes, 1);
        verify(wiped, bytes, 2);
        _exit(0);
    }
    wait_ok(child);
    return 0;
}
