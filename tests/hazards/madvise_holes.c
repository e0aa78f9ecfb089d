/* Advice on a range with a hole in it: the kernel follows it on all that is mapped, and says
 * ENOMEM. Guards are there all the same, and a child finds what was to be wiped empty. */
#include "hazard.h"
#include <setjmp.h>

#define GUARD_INSTALL 102

enum { PAGES = 256, HOLE = 100, HOLES = 20 };

static sigjmp_buf out;
static void on_fault(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}

static bool can_be_read(const unsigned char *at)
{
    if (sigsetjmp(out, 1) != 0)
        return false;
    (void)*(const volatile unsigned char *)at;
    return true;
}

/* Memory with a hole. */
static unsigned char *torn(uint64_t seed)
{
    unsigned char *at = map(PAGES * PAGE);
    fill(at, PAGES * PAGE, seed);
    SYS(munmap(at + HOLE * PAGE, HOLES * PAGE));
    return at;
}

static void advise(unsigned char *at, int advice)
{
    int result = madvise(at, PAGES * PAGE, advice);
    CHECKF(result == -1 && errno == ENOMEM, "advice %d: %s", advice, strerror(errno));
}

static void wiped(void)
{
    unsigned char *at = torn(1);
    churn();
    advise(at, MADV_WIPEONFORK);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify_zero(at, HOLE * PAGE);
        verify_zero(at + (HOLE + HOLES) * PAGE, (PAGES - HOLE - HOLES) * PAGE);
        _exit(0);
    }
    wait_ok(child);
    advise(at, MADV_KEEPONFORK);
    child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(at, HOLE * PAGE, 1);
        _exit(0);
    }
    wait_ok(child);
    /* What is mapped in the hole was never marked. */
    advise(at, MADV_WIPEONFORK);
    void *hole = at + HOLE * PAGE;
    void *mapped = mmap(hole, HOLES * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(mapped == hole);
    fill(hole, HOLES * PAGE, 2);
    churn();
    child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(hole, HOLES * PAGE, 2);
        verify_zero(at, HOLE * PAGE);
        _exit(0);
    }
    wait_ok(child);
    verify_from(at, HOLE * PAGE, 1, 0);
}

static void guarded(void)
{
    unsigned char *probe = map(PAGE);
    if (madvise(probe, PAGE, GUARD_INSTALL) == -1)
        return; /* This kernel has no guards. */
    CHECK(signal(SIGSEGV, on_fault) != SIG_ERR);
    for (int round = 0; round < 8; round++) {
        unsigned char *at = torn(3);
        churn();
        advise(at, GUARD_INSTALL);
        churn();
        for (int page = 0; page < PAGES; page++)
            CHECKF(!can_be_read(at + (size_t)page * PAGE), "round %d: page %d can be read", round, page);
        SYS(munmap(at, PAGES * PAGE));
    }
}

int main(void)
{
    wiped();
    guarded();
    return 0;
}
