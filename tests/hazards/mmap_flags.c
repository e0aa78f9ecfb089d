/* The flags that change what an anonymous mapping is: each gives memory that is
 * zero, keeps what is written, and has the property that was asked for. */
#include "hazard.h"
#include <sys/resource.h>

static void use(const char *name, unsigned char *at, size_t bytes, uint64_t seed)
{
    CHECKF(at != MAP_FAILED, "%s: %s", name, strerror(errno));
    verify_zero(at, bytes);
    fill(at, bytes, seed);
    churn();
    verify(at, bytes, seed);
    SYS(munmap(at, bytes));
}

int main(void)
{
    size_t bytes = 2 * QUARTER;
    int access = PROT_READ | PROT_WRITE, anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
    use("MAP_NORESERVE", mmap(NULL, bytes, access, anonymous | MAP_NORESERVE, -1, 0), bytes, 1);
    use("MAP_STACK", mmap(NULL, bytes, access, anonymous | MAP_STACK, -1, 0), bytes, 2);
    use("MAP_POPULATE", mmap(NULL, bytes, access, anonymous | MAP_POPULATE, -1, 0), bytes, 3);
    /* It is there when the call returns, as far as it may stay. */
    unsigned char *there = mmap(NULL, QUARTER, access, anonymous | MAP_POPULATE, -1, 0);
    CHECKF(there != MAP_FAILED, "MAP_POPULATE: %s", strerror(errno));
    size_t present = present_pages(there, QUARTER);
    CHECKF(present == QUARTER / PAGE || (is_managed() && present > 0),
           "MAP_POPULATE: %zu of %zu pages are present", present, QUARTER / PAGE);
    use("MAP_POPULATE, present", there, QUARTER, 10);
    use("an address hint", mmap((void *)0x200000000000, bytes, access, anonymous, -1, 0), bytes, 4);
    use("descriptor 0 that is ignored", mmap(NULL, bytes, access, anonymous, 0, 0), bytes, 5);
    use("a length that is no whole page", mmap(NULL, bytes - 100, access, anonymous, -1, 0), bytes, 6);
#ifdef MAP_32BIT
    unsigned char *low = mmap(NULL, bytes, access, anonymous | MAP_32BIT, -1, 0);
    CHECKF((uintptr_t)low + bytes <= 1ull << 32, "MAP_32BIT gave %p", (void *)low);
    use("MAP_32BIT", low, bytes, 7);
#endif
    struct rlimit limit;
    SYS(getrlimit(RLIMIT_MEMLOCK, &limit));
    unsigned char *locked = mmap(NULL, 256 * KIB, access, anonymous | MAP_LOCKED, -1, 0);
    if (locked != MAP_FAILED || limit.rlim_cur >= 256 * KIB)
        use("MAP_LOCKED", locked, 256 * KIB, 8);

    /* A stack that grows down into a guard gap as it is touched. */
    unsigned char *reserve = mmap(NULL, 16 * QUARTER, PROT_NONE, anonymous | MAP_NORESERVE, -1, 0);
    CHECK(reserve != MAP_FAILED);
    SYS(munmap(reserve, 16 * QUARTER));
    unsigned char *stack = mmap(reserve + 15 * QUARTER, 64 * KIB, access,
                                anonymous | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0);
    CHECKF(stack != MAP_FAILED, "MAP_GROWSDOWN: %s", strerror(errno));
    verify_zero(stack, 64 * KIB);
    for (size_t page = 1; page <= 256; page++)
        fill_from(stack - page * PAGE, PAGE, 9, page);
    churn();
    for (size_t page = 1; page <= 256; page++)
        verify_from(stack - page * PAGE, PAGE, 9, page);

    /* What plain Linux refuses is refused. */
    CHECK(mmap(NULL, 0, access, anonymous, -1, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, PAGE, access, MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, bytes, access, anonymous, -1, 1) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, 1ul << 60, access, anonymous, -1, 0) == MAP_FAILED && errno == ENOMEM);
    CHECK(mmap((void *)1, PAGE, access, anonymous | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EINVAL);
    CHECK(mmap(NULL, PAGE, access, MAP_PRIVATE, -1, 0) == MAP_FAILED && errno == EBADF);
    return 0;
}
