/* One mremap moves several mappings, with what lies between them (Linux 6.17), by the C library's `mremap`
 * and by its `syscall`. */
#include "hazard.h"

#define PART (2 * QUARTER)
#define RW (PROT_READ | PROT_WRITE)

static const int fixed = MREMAP_MAYMOVE | MREMAP_FIXED;

/* Whether the kernel does so with memory that is too small to be managed. */
static bool is_done_here(void)
{
    unsigned char *at = map(4 * PAGE);
    SYS(mprotect(at, PAGE, PROT_READ));
    return mremap(at, 2 * PAGE, 2 * PAGE, fixed, at + 2 * PAGE) == at + 2 * PAGE;
}

static void *move(bool by_number, void *at, size_t bytes, int flags, void *to)
{
    if (by_number)
        return (void *)syscall(SYS_mremap, at, bytes, bytes, flags, to);
    return mremap(at, bytes, bytes, flags, to);
}

static unsigned char *reserve(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

int main(void)
{
    if (!is_done_here())
        skip("this kernel moves one mapping at a time");
    churn();
    for (int round = 0; round < 12; round++) {
        bool by_number = round >= 6;
        bool stays = round % 3 == 2;
        unsigned char *to = reserve(6 * PART), *at = map(6 * PART);
        fill(at, 6 * PART, 1);
        /* To read, a hole, nothing allowed, to write. */
        SYS(mprotect(at, PART, PROT_READ));
        SYS(munmap(at + 2 * PART, PART));
        SYS(mprotect(at + 3 * PART, PART, PROT_NONE));
        if (round % 2)
            churn();
        void *moved = move(by_number, at, 6 * PART, fixed | (stays ? MREMAP_DONTUNMAP : 0), to);
        CHECKF(moved == to, "round %d: %s", round, strerror(errno));
        verify(to, PART, 1);
        verify_from(to + PART, PART, 1, PART / PAGE);
        SYS(mprotect(to + 3 * PART, PART, RW));
        verify_from(to + 3 * PART, 3 * PART, 1, 3 * PART / PAGE);
        SYS(mprotect(to, PART, RW));
        fill(to, 2 * PART, 2);
        churn();
        verify(to, 2 * PART, 2);
        if (stays) {
            verify_zero(at, 2 * PART);
            verify_zero(at + 4 * PART, 2 * PART);
            SYS(munmap(at, 6 * PART));
        }
        CHECK(mmap(at, 6 * PART, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0)
              == at);
        verify_zero(at, 6 * PART);
        SYS(munmap(at, 6 * PART));
        /* A hole at the beginning is an error, and nothing moves. */
        SYS(munmap(to, PART));
        CHECK(move(by_number, to, 2 * PART, fixed, at) == MAP_FAILED && errno == EFAULT);
        verify_from(to + PART, PART, 2, PART / PAGE);
        SYS(munmap(to, 6 * PART));
    }
    return 0;
}
