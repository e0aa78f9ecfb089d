/* RLIMIT_AS lowered to what is mapped: memory moves, is cut up, forked and exchanged, and keeps
 * its content, although nobody gets one page of address space more. */
#include "hazard.h"
#include <sys/resource.h>

static void forbid_more(void)
{
    struct rlimit limit = {address_space(), RLIM_INFINITY};
    SYS(setrlimit(RLIMIT_AS, &limit));
}

static unsigned char *moved(unsigned char *from, size_t bytes, unsigned char *to)
{
    void *at = mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    CHECKF(at == to, "mremap to %p gave %p", (void *)to, at);
    return at;
}

int main(void)
{
    size_t bytes = 8 * QUARTER, half = 4 * QUARTER;
    unsigned char *at = map(bytes), *other = map(bytes);
    fill(at, bytes, 1);
    fill(other, bytes, 2);
    churn();

    /* Far from everything, so that each part is a place of its own. */
    unsigned char *far = (unsigned char *)((uintptr_t)at + GIB);
    forbid_more();
    unsigned char *second = moved(at + half, half, far);
    verify(at, half, 1);
    verify_from(second, half, 1, half / PAGE);
    churn();

    /* Page by page, each with pages of others around it, and what is given back taken away. */
    for (size_t page = 0; page < 16; page++) {
        unsigned char *to = far + (page + 1) * 16 * MIB;
        moved(other + 2 * page * PAGE, PAGE, to);
        verify_from(to, PAGE, 2, 2 * page);
        SYS(munmap(other + (2 * page + 1) * PAGE, PAGE));
        forbid_more();
    }
    churn();
    for (size_t page = 0; page < 16; page++)
        verify_from(far + (page + 1) * 16 * MIB, PAGE, 2, 2 * page);
    verify_from(other + half, half, 2, half / PAGE);

    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(at, half, 1);
        verify_from(second, half, 1, half / PAGE);
        fill(at, half, 3);
        verify(at, half, 3);
        _exit(0);
    }
    int status;
    SYS(waitpid(child, &status, 0));
    CHECKF(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child: %x", (unsigned)status);
    churn();
    verify(at, half, 1);
    verify_from(second, half, 1, half / PAGE);
    return 0;
}
