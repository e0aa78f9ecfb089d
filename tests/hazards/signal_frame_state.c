/* A handler changes the interrupted program's registers through its context, and
 * repairs faults by hand (as language runtimes do for null checks): the frame
 * the program sees is the kernel's. */
#include "hazard.h"
#include <ucontext.h>

static unsigned char *at;
static const size_t bytes = 4 * QUARTER;
static volatile int repaired;

#if defined(__x86_64__)
static void on_fault(int signal, siginfo_t *info, void *context)
{
    ucontext_t *frame = context;
    CHECKF(signal == SIGSEGV && (uintptr_t)info->si_addr < PAGE, "signal %d at %p", signal, info->si_addr);
    CHECK((uintptr_t)frame->uc_mcontext.gregs[REG_RDX] == (uintptr_t)info->si_addr);
    verify_from(at + 16 * PAGE, 16 * PAGE, 1, 16);
    /* Point the register to absent memory and repeat the load. */
    frame->uc_mcontext.gregs[REG_RDX] = (greg_t)(uintptr_t)(at + (size_t)(repaired % 500) * PAGE);
    repaired++;
}
#endif

int main(void)
{
#if !defined(__x86_64__)
    skip("the frame is that of x86-64");
#else
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    SYS(sigaction(SIGSEGV, &action, NULL));
    at = map(bytes);
    fill(at, bytes, 1);
    churn();
    for (int i = 0; i < 200; i++) {
        uint64_t value, address = 16 + (uint64_t)i;
        __asm__ volatile("mov (%%rdx), %0" : "=r"(value), "+d"(address) : : "memory");
        CHECKF(value == pattern(1, (size_t)i, 0), "load %d gives %#llx", i, (unsigned long long)value);
        CHECK(address == (uint64_t)(uintptr_t)(at + (size_t)i * PAGE));
        if (i % 50 == 0)
            churn();
    }
    CHECK(repaired == 200);
    return 0;
#endif
}
