/* Marks of what a child is to find empty (MADV_WIPEONFORK), and guards, where the call that sets them fails
 * in part, and where what was marked goes without munmap: the heap's end, memory that a child does not
 * inherit, and what is unmapped past the C library. */
#include "instruction.h"

#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

static const size_t BYTES = 2ul << 20;

static void child_finds(const unsigned char *at, uint64_t seed, bool empty)
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        if (empty)
            verify_zero(at, BYTES);
        else
            verify(at, BYTES, seed);
        _exit(0);
    }
    wait_ok(child);
}

static void *map_here(void *at, int flags)
{
    void *mapped = mmap(at, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    CHECK(mapped == at);
    return mapped;
}

/* The kernel marks what lies in front of the mapping that it refuses. */
static void refused_in_part(void)
{
    unsigned char *at = map(2 * BYTES);
    void *shared = mmap(at + BYTES, BYTES, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(shared == at + BYTES);
    fill(at, BYTES, 1);
    CHECK(madvise(at, 2 * BYTES, MADV_WIPEONFORK) == -1 && errno == EINVAL);
    churn();
    child_finds(at, 1, true);
    verify(at, BYTES, 1);
    SYS(madvise(at, BYTES, MADV_KEEPONFORK));
    churn();
    child_finds(at, 1, false);
    SYS(munmap(at, 2 * BYTES));
}

static void guarded_in_part(void)
{
    unsigned char *at = map(BYTES + 16 * PAGE);
    fill(at, BYTES, 2);
    churn();
    if (mlock(at + BYTES, 16 * PAGE) == -1)
        return; /* A limit. */
    if (madvise(at, BYTES + 16 * PAGE, GUARD_INSTALL) == 0 || errno != EINVAL)
        return; /* Without guards, or with guards on locked memory. */
    if (madvise(at, BYTES, GUARD_REMOVE) == -1)
        return;
    verify_zero(at, BYTES);
    fill(at, BYTES, 3);
    churn();
    verify(at, BYTES, 3);
    SYS(munmap(at, BYTES + 16 * PAGE));
}

static void heap(void)
{
    uintptr_t end = (uintptr_t)sbrk(0);
    CHECK(sbrk((intptr_t)(-end & (PAGE - 1))) != (void *)-1);
    unsigned char *at = sbrk((intptr_t)BYTES);
    CHECK(at != (void *)-1);
    fill(at, BYTES, 4);
    churn();
    SYS(madvise(at, BYTES, MADV_WIPEONFORK));
    child_finds(at, 4, true);
    CHECK(sbrk(-(intptr_t)BYTES) != (void *)-1);
    CHECK(sbrk((intptr_t)BYTES) == at);
    fill(at, BYTES, 5);
    churn();
    child_finds(at, 5, false);
    SYS(madvise(at, BYTES, MADV_WIPEONFORK));
    SYS(brk(at));
    SYS(brk(at + BYTES));
    fill(at, BYTES, 6);
    churn();
    child_finds(at, 6, false);
    SYS(brk(at));
}

/* A child without the memory maps other memory there, and forks. */
static void not_inherited(void)
{
    unsigned char *at = map(BYTES);
    fill(at, BYTES, 7);
    churn();
    SYS(madvise(at, BYTES, MADV_WIPEONFORK));
    SYS(madvise(at, BYTES, MADV_DONTFORK));
    for (int hint = 0; hint < 2; hint++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            map_here(at, hint ? 0 : MAP_FIXED_NOREPLACE);
            fill(at, BYTES, 8);
            churn();
            child_finds(at, 8, false);
            _exit(0);
        }
        wait_ok(child);
    }
    verify(at, BYTES, 7);
    SYS(munmap(at, BYTES));
}

static void unmapped_past_the_library(void)
{
    unsigned char *at = map(BYTES);
    fill(at, BYTES, 9);
    SYS(madvise(at, BYTES, MADV_WIPEONFORK));
    churn();
    SYS(instruction(SYS_munmap, (long)at, (long)BYTES, 0, 0, 0, 0));
    map_here(at, MAP_FIXED_NOREPLACE);
    fill(at, BYTES, 10);
    churn();
    child_finds(at, 10, false);
    SYS(munmap(at, BYTES));
}

int main(void)
{
    for (int round = 0; round < 2; round++) {
        refused_in_part();
        guarded_in_part();
        heap();
        not_inherited();
        unmapped_past_the_library();
    }
    return 0;
}
