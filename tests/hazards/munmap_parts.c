/* Head, tail and middle of a region are unmapped; the rest stays, the holes are
 * really gone, and what is mapped there again starts from zero. */
#include "hazard.h"
#include <setjmp.h>

static sigjmp_buf out;
static void *volatile fault_address;
static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)context;
    CHECK(signal == SIGSEGV);
    fault_address = info->si_addr;
    siglongjmp(out, info->si_code);
}

static void must_be_gone(unsigned char *at)
{
    int code = sigsetjmp(out, 1);
    if (code == 0) {
        *(volatile unsigned char *)at;
        FAIL("%p can still be read", (void *)at);
    }
    CHECKF(code == SEGV_MAPERR, "si_code %d", code);
    CHECK(fault_address == at);
}

int main(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    SYS(sigaction(SIGSEGV, &action, NULL));
    size_t bytes = 8 * QUARTER, part = 2 * QUARTER;
    unsigned char *at = map(bytes);
    for (int round = 0; round < 2; round++) {
        fill(at, bytes, 1);
        churn();
        SYS(munmap(at, part - PAGE));                       /* head */
        SYS(munmap(at + bytes - part, part));               /* tail */
        SYS(munmap(at + bytes / 2, 3 * PAGE));              /* middle, a few pages */
        SYS(munmap(at + bytes / 2 + 100 * PAGE, PAGE));     /* and one page */
        must_be_gone(at);
        must_be_gone(at + part - 2 * PAGE);
        must_be_gone(at + bytes - part);
        must_be_gone(at + bytes / 2 + 2 * PAGE + 5);
        must_be_gone(at + bytes / 2 + 100 * PAGE + 4095);
        churn();
        for (size_t page = part / PAGE - 1; page < (bytes - part) / PAGE; page++) {
            size_t from_middle = page - bytes / 2 / PAGE;
            if (from_middle < 3 || from_middle == 100)
                continue;
            verify_from(at + page * PAGE, PAGE, 1, page);
        }
        /* A hole takes part in a larger unmap and in a new mapping. */
        SYS(munmap(at + bytes / 2 - 8 * PAGE, 16 * PAGE));
        unsigned char *again = mmap(at, bytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(again == at);
        verify_zero(at, bytes);
    }
    /* Page by page, from both ends. */
    fill(at, QUARTER, 3);
    churn();
    for (size_t page = 0; page < QUARTER / PAGE / 2 - 1; page++) {
        SYS(munmap(at + page * PAGE, PAGE));
        SYS(munmap(at + QUARTER - (page + 1) * PAGE, PAGE));
    }
    verify_from(at + QUARTER / 2 - PAGE, 2 * PAGE, 3, QUARTER / 2 / PAGE - 1);
    /* Errors as ever: an unaligned address, nothing mapped there. */
    CHECK(munmap(at + 1, PAGE) == -1 && errno == EINVAL);
    CHECK(munmap(at, 0) == -1 && errno == EINVAL);
    SYS(munmap(at, bytes));
    SYS(munmap(at, bytes)); /* unmapping nothing is no error */
    return 0;
}
