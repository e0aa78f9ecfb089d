/* MADV_GUARD_INSTALL makes pages that fault, without a mapping of their own
 * (the C library's newer thread stacks use it). In a child, too. */
#include "hazard.h"
#include <setjmp.h>

#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

static sigjmp_buf out;
static void on_fault(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}

static void verify_guards(unsigned char *at)
{
    if (sigsetjmp(out, 1) == 0) {
        *(volatile unsigned char *)(at + 100 * PAGE);
        FAIL("a guard page can be read");
    }
    if (sigsetjmp(out, 1) == 0) {
        *(volatile unsigned char *)(at + 64 * PAGE) = 1;
        FAIL("a guard page can be written");
    }
}

static void verify_all(unsigned char *at, size_t bytes)
{
    verify_guards(at);
    churn();
    verify_guards(at);
    verify(at, 64 * PAGE, 1);
    verify_from(at + 128 * PAGE, bytes - 128 * PAGE, 1, 128);
}

static void remove_guards(unsigned char *at)
{
    SYS(madvise(at + 64 * PAGE, 64 * PAGE, GUARD_REMOVE));
    verify_zero(at + 64 * PAGE, 64 * PAGE);
    fill(at + 64 * PAGE, 64 * PAGE, 2);
    churn();
    verify(at + 64 * PAGE, 64 * PAGE, 2);
}

int main(void)
{
    size_t bytes = 4 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    if (madvise(at + 64 * PAGE, 64 * PAGE, GUARD_INSTALL) == -1) {
        CHECKF(errno == EINVAL, "guard: %s", strerror(errno));
        skip("this kernel has no MADV_GUARD_INSTALL");
    }
    CHECK(signal(SIGSEGV, on_fault) != SIG_ERR);
    verify_all(at, bytes);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify_all(at, bytes);
        remove_guards(at);
        _exit(0);
    }
    wait_ok(child);
    verify_all(at, bytes);
    remove_guards(at);
    return 0;
}
