/* mremap by the C library, and by its `syscall`, where arguments are odd: what the kernel refuses is refused
 * and nothing has changed, a place that is wished for is taken, and success leaves errno as it was. */
#include "instruction.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define BYTES (2 * QUARTER)

static const int stays = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;

static unsigned char *filled(uint64_t seed)
{
    unsigned char *at = map(BYTES);
    fill(at, BYTES, seed);
    churn();
    return at;
}

static void success_leaves_errno(void)
{
    unsigned char *at = filled(1);
    /* It has to move. */
    void *behind = mmap(at + BYTES, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    errno = 0;
    at = mremap(at, BYTES, 4 * BYTES, MREMAP_MAYMOVE);
    CHECKF(at != MAP_FAILED && errno == 0, "mremap gave %p", (void *)at);
    if (behind != MAP_FAILED)
        SYS(munmap(behind, PAGE));
    behind = mmap(at + 4 * BYTES, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    errno = 0;
    at = (void *)syscall(SYS_mremap, at, 4 * BYTES, 8 * BYTES, MREMAP_MAYMOVE);
    CHECKF(at != MAP_FAILED && errno == 0, "mremap gave %p", (void *)at);
    if (behind != MAP_FAILED)
        SYS(munmap(behind, PAGE));
    churn();
    verify(at, BYTES, 1);
    verify_zero(at + BYTES, 7 * BYTES);
    SYS(munmap(at, 8 * BYTES));
}

static void is_refused(const unsigned char *at, long flags, const void *to, uint64_t seed)
{
    errno = 0;
    long moved = syscall(SYS_mremap, at, BYTES, BYTES, flags, to);
    CHECKF(moved == -1 && errno == EINVAL, "flags %#lx, to %p: %#lx", (unsigned long)flags, to, (unsigned long)moved);
    verify(at, BYTES, seed);
}

static void what_the_kernel_refuses(void)
{
    unsigned char *at = filled(2), *to = map(BYTES);
    is_refused(at, (1l << 32) | MREMAP_MAYMOVE, NULL, 2);
    is_refused(at, (1l << 40) | MREMAP_MAYMOVE | MREMAP_FIXED, to, 2);
    is_refused(at, (1l << 31) | MREMAP_MAYMOVE, NULL, 2);
    is_refused(at, -1, NULL, 2);
    is_refused(at, MREMAP_FIXED, to, 2);
    is_refused(at, MREMAP_MAYMOVE | MREMAP_FIXED, to + 1, 2);
    verify_zero(to, BYTES);
    SYS(munmap(to, BYTES));
    SYS(munmap(at, BYTES));
}

/* The fifth argument is a place that is wished for where memory stays mapped at its old one. */
static void a_place_that_is_wished_for(void)
{
    unsigned char *at = filled(3), *place = map(BYTES);
    SYS(munmap(place, BYTES));
    unsigned char *moved = (void *)instruction(SYS_mremap, (long)at, BYTES, BYTES, stays, (long)place, 0);
    if (moved == MAP_FAILED && errno == EINVAL)
        skip("this kernel has no MREMAP_DONTUNMAP");
    CHECK(moved != MAP_FAILED);
    bool is_granted = moved == place;
    verify(moved, BYTES, 3);
    verify_zero(at, BYTES);
    SYS(munmap(moved, BYTES));

    fill(at, BYTES, 4);
    churn();
    is_refused(at, stays, place + 1, 4);
    is_refused(at, stays, at, 4);
    is_refused(at, stays, at + BYTES - PAGE, 4);
    is_refused(at, stays, (void *)-PAGE, 4);
    moved = (void *)syscall(SYS_mremap, at, BYTES, BYTES, stays, place);
    CHECK(moved != MAP_FAILED);
    CHECKF(!is_granted || moved == place, "%p was free, and it came to %p", (void *)place, (void *)moved);
    churn();
    verify(moved, BYTES, 4);
    verify_zero(at, BYTES);
    /* Without a wish. */
    fill(at, BYTES, 5);
    churn();
    unsigned char *other = (void *)syscall(SYS_mremap, at, BYTES, BYTES, stays, NULL);
    CHECK(other != MAP_FAILED && other != at && other != moved);
    churn();
    verify(other, BYTES, 5);
    verify(moved, BYTES, 4);
    verify_zero(at, BYTES);
    SYS(munmap(other, BYTES));
    SYS(munmap(moved, BYTES));
    SYS(munmap(at, BYTES));
}

int main(void)
{
    for (int round = 0; round < 2; round++) {
        success_leaves_errno();
        what_the_kernel_refuses();
        a_place_that_is_wished_for();
    }
    return 0;
}
