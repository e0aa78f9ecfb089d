/* A write barrier as garbage collectors have it: the heap is read-only, the
 * SIGSEGV handler opens the page that was written and returns, and the store
 * is repeated. Absent pages are written as often as present ones. */
#include "hazard.h"

static unsigned char *at;
static const size_t bytes = 4 * QUARTER;
static volatile unsigned char dirty[4 * QUARTER / 4096];
static volatile size_t barriers;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)context;
    size_t page = (size_t)((unsigned char *)info->si_addr - at) / PAGE;
    CHECKF(signal == SIGSEGV && page < bytes / PAGE, "signal %d at %p", signal, info->si_addr);
    CHECKF(!dirty[page], "page %zu faults although it is open", page);
    dirty[page] = 1;
    barriers++;
    SYS(mprotect(at + page * PAGE, PAGE, PROT_READ | PROT_WRITE));
}

int main(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    SYS(sigaction(SIGSEGV, &action, NULL));
    at = map(bytes);
    fill(at, bytes, 1);
    for (uint64_t round = 1; round <= 3; round++) {
        memset((void *)dirty, 0, sizeof dirty);
        barriers = 0;
        SYS(mprotect(at, bytes, PROT_READ));
        if (round != 2)
            churn();
        size_t written = 0;
        for (size_t page = round; page < bytes / PAGE; page += 5, written++)
            ((volatile uint64_t *)at)[page * WORDS + 2] = round;
        CHECKF(barriers == written, "%zu barriers for %zu first writes", barriers, written);
        for (size_t page = 0; page < bytes / PAGE; page++) {
            CHECK(dirty[page] == (page >= round && (page - round) % 5 == 0));
            uint64_t want = pattern(1, page, 2);
            for (uint64_t r = 1; r <= round; r++)
                if (page >= r && (page - r) % 5 == 0)
                    want = r;
            CHECKF(((uint64_t *)at)[page * WORDS + 2] == want, "round %llu page %zu",
                   (unsigned long long)round, page);
            CHECK(((uint64_t *)at)[page * WORDS + 3] == pattern(1, page, 3));
        }
    }
    return 0;
}
