/* Protection faults stay protection faults: an access that plain Linux answers
 * with SIGSEGV gets SIGSEGV, with the right address and code, present or
 * absent; after mprotect it succeeds and finds the right content. */
#include "hazard.h"
#include <setjmp.h>

static sigjmp_buf out;
static void *volatile fault_address;
static volatile int fault_code;
static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    fault_address = info->si_addr;
    fault_code = info->si_code;
    siglongjmp(out, 1);
}

static bool can_read(unsigned char *at)
{
    if (sigsetjmp(out, 1))
        return false;
    *(volatile unsigned char *)at;
    return true;
}
static bool can_write(unsigned char *at)
{
    if (sigsetjmp(out, 1))
        return false;
    unsigned char was = *(volatile unsigned char *)at;
    *(volatile unsigned char *)at = was;
    return true;
}
static bool can_store(unsigned char *at, unsigned char value) /* without reading before */
{
    if (sigsetjmp(out, 1))
        return false;
    *(volatile unsigned char *)at = value;
    return true;
}
#define REFUSED(access, at)                                                    \
    do {                                                                       \
        CHECK(!(access));                                                      \
        CHECKF(fault_address == (void *)(at), "si_addr %p instead of %p",      \
               fault_address, (void *)(at));                                   \
        CHECKF(fault_code == SEGV_ACCERR, "si_code %d", fault_code);           \
    } while (0)

int main(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    SYS(sigaction(SIGSEGV, &action, NULL));
    size_t bytes = 4 * QUARTER, part = QUARTER;
    unsigned char *at = map(bytes);
    for (int absent = 0; absent < 2; absent++) {
        SYS(mprotect(at, bytes, PROT_READ | PROT_WRITE));
        fill(at, bytes, 1);
        SYS(mprotect(at, part, PROT_NONE));
        SYS(mprotect(at + part, part, PROT_READ));
        if (absent)
            churn();
        for (size_t page = 0; page < part / PAGE; page += 17) {
            REFUSED(can_read(at + page * PAGE + 9), at + page * PAGE + 9);
            REFUSED(can_store(at + page * PAGE + 7, 1), at + page * PAGE + 7);
            REFUSED(can_store(at + part + page * PAGE + 5, 1), at + part + page * PAGE + 5);
            CHECK(can_read(at + part + page * PAGE));
            REFUSED(can_write(at + part + page * PAGE + 5), at + part + page * PAGE + 5);
        }
        verify_from(at + part, part, 1, part / PAGE);
        verify_from(at + 2 * part, 2 * part, 1, 2 * part / PAGE);
        if (absent)
            churn();
        SYS(mprotect(at, 2 * part, PROT_READ | PROT_WRITE));
        CHECK(can_store(at + 5, pattern_byte(1, 5)));
        verify(at, bytes, 1);
    }
    /* Never touched memory that is read-only, then writable. */
    unsigned char *fresh = mmap(NULL, QUARTER, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(fresh != MAP_FAILED);
    REFUSED(can_store(fresh + 3, 1), fresh + 3);
    verify_zero(fresh, QUARTER);
    REFUSED(can_store(fresh + 3, 1), fresh + 3);
    SYS(mprotect(fresh, QUARTER, PROT_READ | PROT_WRITE));
    fill(fresh, QUARTER, 2);
    SYS(mprotect(fresh, QUARTER, PROT_NONE));
    churn();
    SYS(mprotect(fresh, QUARTER, PROT_READ));
    verify(fresh, QUARTER, 2);
    /* Memory that starts without any access and is opened later. */
    unsigned char *closed = mmap(NULL, QUARTER, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(closed != MAP_FAILED);
    REFUSED(can_read(closed), closed);
    SYS(mprotect(closed, QUARTER, PROT_READ | PROT_WRITE));
    verify_zero(closed, QUARTER);
    fill(closed, QUARTER, 3);
    churn();
    verify(closed, QUARTER, 3);
    /* System calls are refused too, with EFAULT. */
    int pipe_ends[2];
    SYS(pipe(pipe_ends));
    write_all(pipe_ends[1], "abc", 3);
    SYS(mprotect(fresh, QUARTER, PROT_READ));
    CHECK(read(pipe_ends[0], fresh + 30 * PAGE, 3) == -1 && errno == EFAULT);
    SYS(mprotect(fresh, QUARTER, PROT_NONE));
    CHECK(write(pipe_ends[1], fresh + 30 * PAGE, 3) == -1 && errno == EFAULT);
    CHECK(mprotect(fresh + 1, PAGE, PROT_READ) == -1 && errno == EINVAL);
    SYS(munmap(fresh, QUARTER));
    CHECK(mprotect(fresh, QUARTER, PROT_READ) == -1 && errno == ENOMEM);
    return 0;
}
