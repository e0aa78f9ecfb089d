/* A process gives advice on its own memory by a descriptor of itself (process_madvise, any advice since
 * Linux 6.13): what a child is to find empty it finds empty, and what lay under guards is gone. */
#include "hazard.h"

#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
#define PART ((ssize_t)QUARTER)
enum { PARTS = 5 };

static int self;

static ssize_t advise(bool by_number, const struct iovec *parts, size_t count, int advice)
{
#if __GLIBC_PREREQ(2, 36)
    if (!by_number)
        return process_madvise(self, parts, count, advice, 0);
#else
    (void)by_number;
#endif
    return syscall(SYS_process_madvise, self, parts, count, advice, 0);
}

/* A child finds each part with its content, or empty. */
static void child_finds(const unsigned char *at, uint64_t seed, const bool *empty)
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        for (size_t part = 0; part < PARTS; part++)
            if (empty[part])
                verify_zero(at + part * PART, PART);
            else
                verify_from(at + part * PART, PART, seed, part * PART / PAGE);
        _exit(0);
    }
    wait_ok(child);
}

static void advise_on(bool by_number, uint64_t seed)
{
    static const bool none[PARTS], two[PARTS] = {false, true, false, true, false}, one[PARTS] = {false, true};
    unsigned char *at = map(PARTS * PART);
    struct iovec *parts = map(64 * KIB); /* What the kernel is to read is absent, too. */
    parts[0] = (struct iovec){at + PART, PART};
    parts[1] = (struct iovec){at + 3 * PART, PART};
    fill(at, PARTS * PART, seed);
    churn();
    errno = 0;
    ssize_t done = advise(by_number, parts, 2, MADV_WIPEONFORK);
    if (done == -1) {
        CHECKF(errno == EINVAL || errno == ENOSYS || errno == EPERM, "process_madvise: %s", strerror(errno));
        skip("this kernel takes no such advice by a descriptor");
    }
    CHECKF(done == 2 * PART && errno == 0, "%zd bytes", done);
    churn();
    child_finds(at, seed, two);
    verify(at, PARTS * PART, seed);
    CHECK(advise(by_number, parts, 2, MADV_KEEPONFORK) == 2 * PART);
    churn();
    child_finds(at, seed, none);

    /* What `madvise` has marked, and the other way round. */
    SYS(madvise(at + PART, PART, MADV_WIPEONFORK));
    CHECK(advise(by_number, parts, 1, MADV_KEEPONFORK) == PART);
    child_finds(at, seed, none);
    CHECK(advise(by_number, parts, 1, MADV_WIPEONFORK) == PART);
    SYS(madvise(at + PART, PART, MADV_KEEPONFORK));
    child_finds(at, seed, none);

    /* The second part is not mapped: the first is done. */
    unsigned char *hole = map(PART);
    SYS(munmap(hole, PART));
    parts[1].iov_base = hole;
    churn();
    CHECK(advise(by_number, parts, 2, MADV_WIPEONFORK) == PART);
    churn();
    child_finds(at, seed, one);
    CHECK(advise(by_number, parts, 1, MADV_KEEPONFORK) == PART);
    CHECK(advise(by_number, (void *)8, 1, MADV_WIPEONFORK) == -1 && errno == EFAULT);
    CHECK(advise(by_number, parts, 0, MADV_WIPEONFORK) == 0);
    child_finds(at, seed, none);

    churn();
    if (advise(by_number, parts, 1, GUARD_INSTALL) == PART) {
        churn();
        CHECK(advise(by_number, parts, 1, GUARD_REMOVE) == PART);
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            verify_zero(at + PART, PART);
            _exit(0);
        }
        wait_ok(child);
        verify_zero(at + PART, PART);
        verify(at, PART, seed);
        verify_from(at + 2 * PART, 3 * PART, seed, 2 * PART / PAGE);
    }
    SYS(munmap(at, PARTS * PART));
    SYS(munmap(parts, 64 * KIB));
}

int main(void)
{
    self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (self == -1)
        skip("this kernel has no descriptors of processes");
    for (int round = 0; round < 4; round++)
        advise_on(round & 1, 1 + (uint64_t)round);
    return 0;
}
