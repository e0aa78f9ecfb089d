/* One mremap moves several mappings, with what lies between them (Linux 6.17), in a program under a filter
 * that kills for what it does not call itself. By name and by number. */
#include "filter.h"

#define PART (2 * QUARTER)
#define RW (PROT_READ | PROT_WRITE)

static const int fixed = MREMAP_MAYMOVE | MREMAP_FIXED;

static const struct sock_filter code[] = {
    NUMBER, KILL(openat), KILL(open), KILL(prlimit64), KILL(mincore), OTHERWISE(SECCOMP_RET_ALLOW),
};

/* Whether the kernel does so with memory that is too small to be managed. */
static bool is_done_here(void)
{
    unsigned char *at = map(4 * PAGE);
    SYS(mprotect(at, PAGE, PROT_READ));
    return mremap(at, 2 * PAGE, 2 * PAGE, fixed, at + 2 * PAGE) == at + 2 * PAGE;
}

static void *move(bool by_number, void *at, size_t bytes, void *to)
{
    if (by_number)
        return (void *)syscall(SYS_mremap, at, bytes, bytes, fixed, to);
    return mremap(at, bytes, bytes, fixed, to);
}

int main(void)
{
    if (!is_done_here())
        skip("this kernel moves one mapping at a time");
    churn();
    struct sock_fprog program = PROGRAM(code);
    if (!set_filter(&program)) {
        fprintf(stderr, "no filter is allowed here\n");
        return 77;
    }
    for (int round = 0; round < 4; round++) {
        bool by_number = round >= 2;
        unsigned char *to = map(6 * PART), *at = map(6 * PART);
        fill(at, 6 * PART, 1);
        /* To read, a hole, a page at a time to read or to write, nothing allowed, to write. */
        SYS(mprotect(at, PART, PROT_READ));
        SYS(munmap(at + 2 * PART, PART - 3 * PAGE));
        for (size_t page = 0; page < 16; page += 2)
            SYS(mprotect(at + 3 * PART + page * PAGE, PAGE, PROT_READ));
        SYS(mprotect(at + 4 * PART, PART + PAGE, PROT_NONE));
        if (round % 2)
            churn();
        void *moved = move(by_number, at, 6 * PART, to);
        CHECKF(moved == to, "round %d: %s", round, strerror(errno));
        verify(to, 2 * PART, 1);
        verify_from(to + 3 * PART - 3 * PAGE, PART + 3 * PAGE, 1, 3 * PART / PAGE - 3);
        SYS(mprotect(to + 4 * PART, PART + PAGE, RW));
        verify_from(to + 4 * PART, 2 * PART, 1, 4 * PART / PAGE);
        SYS(mprotect(to, 2 * PART, RW));
        fill(to, 2 * PART, 2);
        churn();
        verify(to, 2 * PART, 2);
        CHECK(mmap(at, 6 * PART, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
        verify_zero(at, 6 * PART);
        SYS(munmap(at, 6 * PART));
        /* A hole at the beginning is an error, and nothing moves. */
        SYS(munmap(to, PART));
        CHECK(move(by_number, to, 2 * PART, at) == MAP_FAILED && errno == EFAULT);
        verify_from(to + PART, PART, 2, PART / PAGE);
        SYS(munmap(to, 6 * PART));
    }
    return 0;
}
