/* A part of memory is sealed (mseal). What would unmap it, map over it or move it is refused, and all of
 * the memory stays as it is: what is sealed, and what lies in front of it and behind it. Also in children. */
#include "seals.h"
#include <sys/shm.h>

#define PART (2 * QUARTER)
#define ALL (3 * PART)
#define ACCESS (PROT_READ | PROT_WRITE)

static int unmap(void *at, size_t bytes, bool by_number)
{
    return by_number ? (int)syscall(SYS_munmap, at, bytes) : munmap(at, bytes);
}
static void *map_over(void *at, size_t bytes, int flags, int fd, bool by_number)
{
    flags |= MAP_PRIVATE | MAP_FIXED;
    return by_number ? (void *)syscall(SYS_mmap, at, bytes, ACCESS, flags, fd, 0l)
                     : mmap(at, bytes, ACCESS, flags, fd, 0);
}
static void *move(void *at, size_t bytes, size_t length, void *to, bool by_number)
{
    int flags = to ? MREMAP_MAYMOVE | MREMAP_FIXED : 0;
    return by_number ? (void *)syscall(SYS_mremap, at, bytes, length, flags, to)
                     : mremap(at, bytes, length, flags, to);
}

#define REFUSED(call, error)                                                                 \
    do {                                                                                     \
        errno = 0;                                                                           \
        long result_ = (long)(call);                                                         \
        CHECKF(result_ == -1 && errno == (error), "%s: %ld, %s", #call, result_, strerror(errno)); \
    } while (0)

/* Of three parts the middle one is sealed. */
static void refuses(unsigned char *at, uint64_t seed, bool by_number)
{
    unsigned char *middle = at + PART;
    for (int times = 0; times < 2; times++) {
        REFUSED(unmap(at, ALL, by_number), EPERM);
        REFUSED(unmap(at, PART + 1, by_number), EPERM);
        REFUSED(unmap(middle, PAGE, by_number), EPERM);
        REFUSED(unmap(middle + PART - PAGE, PART, by_number), EPERM);
        REFUSED(unmap(at + 1, ALL, by_number), EINVAL);
        REFUSED(unmap(at, 0, by_number), EINVAL);
        if (times)
            churn();
        verify(at, ALL, seed);
        REFUSED(map_over(at, ALL, MAP_ANONYMOUS, -1, by_number), EPERM);
        REFUSED(map_over(at, ALL, 0, -1, by_number), EBADF);
        REFUSED(map_over(at + 1, ALL, MAP_ANONYMOUS, -1, by_number), EINVAL);
        REFUSED(map_over(at, ALL, MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, by_number), EEXIST);
        churn();
        verify(at, ALL, seed);
        REFUSED(move(at, ALL, PAGE, NULL, by_number), EPERM);
        REFUSED(move(middle, PART, PAGE, NULL, by_number), EPERM);
        CHECK(move(at, PART, PART, NULL, by_number) == at);
        churn();
        verify(at, ALL, seed);
    }
}

static void refuses_moves(unsigned char *at, uint64_t seed, bool by_number)
{
    unsigned char *other = map(ALL);
    fill(other, ALL, seed + 1);
    churn();
    REFUSED(move(other, ALL, ALL, at, by_number), EPERM);
    REFUSED(move(other, PART, PART + PAGE, at, by_number), EPERM);
    REFUSED(move(other, ALL, ALL, at + 1, by_number), EINVAL);
    REFUSED(move(at + PART, PART, PART, other, by_number), EPERM);
    churn();
    verify(other, ALL, seed + 1);
    verify(at, ALL, seed);
    SYS(munmap(other, PAGE));
    REFUSED(move(other, PART, PART, at, by_number), EFAULT);
    SYS(munmap(other, ALL));
    int segment = shmget(IPC_PRIVATE, ALL, IPC_CREAT | 0600);
    if (segment != -1) {
        REFUSED(shmat(segment, at, SHM_REMAP), EPERM);
        SYS(shmctl(segment, IPC_RMID, NULL));
    }
    churn();
    verify(at, ALL, seed);
}

/* What is not sealed is unmapped, and moved, as any. */
static void gives_back_the_rest(unsigned char *at, uint64_t seed, bool by_number)
{
    SYS(unmap(at + 2 * PART, PART, by_number));
    unsigned char *to = map(PART);
    CHECK(move(at, PART, PART, to, by_number) == to);
    churn();
    verify(to, PART, seed);
    verify_from(at + PART, PART, seed, PART / PAGE);
    CHECK(mmap(at, PART, ACCESS, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
    verify_zero(at, PART);
    churn();
    SYS(unmap(at, PART, by_number));
    SYS(munmap(to, PART));
    churn();
    verify_from(at + PART, PART, seed, PART / PAGE);
}

static void seals(uint64_t seed, bool by_number)
{
    unsigned char *at = map(ALL), *middle = at + PART;
    fill(at, ALL, seed);
    churn();
    REFUSED(seal(at + 1, PAGE, by_number), EINVAL);
    REFUSED(syscall(SYS_mseal, at, PAGE, 1ul), EINVAL);
    /* One after the other, and some twice. */
    SYS(seal(middle, PART / 2, by_number));
    SYS(seal(middle + PART / 2, PART / 2, by_number));
    SYS(seal(middle + PAGE, PART / 2, !by_number));
    churn();
    verify(at, ALL, seed);
    refuses(at, seed, by_number);
    refuses_moves(at, seed, by_number);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        refuses(at, seed, by_number);
        refuses_moves(at, seed, by_number);
        fill(at, ALL, seed + 2);
        refuses(at, seed + 2, by_number);
        gives_back_the_rest(at, seed + 2, by_number);
        _exit(0);
    }
    wait_ok(child);
    refuses(at, seed, by_number);
    gives_back_the_rest(at, seed, by_number);
}

/* Discarding is refused where the program may not write, and not elsewhere. */
static void discards(void)
{
    unsigned char *at = map(ALL), *middle = at + PART;
    fill(at, ALL, 20);
    SYS(mprotect(middle, PART, PROT_READ));
    SYS(seal(middle, PART, false));
    churn();
    REFUSED(madvise(at, ALL, MADV_DONTNEED), EPERM);
    REFUSED(madvise(middle, PART, MADV_DONTNEED), EPERM);
    churn();
    /* What lies in front is discarded since Linux 6.12, and was not before. */
    if (*(volatile uint64_t *)(at + PAGE) == 0)
        verify_zero(at, PART);
    else
        verify(at, PART, 20);
    verify_from(middle, 2 * PART, 20, PART / PAGE);
    fill(at, PART, 21);
    churn();
    verify(at, PART, 21);
    verify_from(middle, 2 * PART, 20, PART / PAGE);
    SYS(munmap(at, PART));
}

/* A child does not have it (MADV_DONTFORK), and other memory at its place. */
static void withholds(void)
{
    unsigned char *at = map(ALL);
    fill(at, ALL, 30);
    SYS(madvise(at + PART, PART, MADV_DONTFORK));
    SYS(seal(at + PART, PART, false));
    churn();
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(at, PART, 30);
        CHECK(mmap(at + PART, PART, ACCESS, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at + PART);
        fill(at + PART, PART, 31);
        churn();
        verify(at + PART, PART, 31);
        SYS(munmap(at, ALL));
        _exit(0);
    }
    wait_ok(child);
    REFUSED(munmap(at, ALL), EPERM);
    verify(at, ALL, 30);
    SYS(munmap(at, PART));
}

/* The heap does not become shorter, and the C library does not notice. */
static void keeps_its_heap(bool by_number)
{
    unsigned char *start = sbrk(0);
    CHECK(start != (void *)-1);
    if (sbrk((intptr_t)(ALL + PAGE)) != start)
        return; /* It cannot grow here. */
    unsigned char *end = sbrk(0), *at = (void *)(((uintptr_t)start + PAGE - 1) / PAGE * PAGE);
    fill(at, ALL, 40);
    churn();
    SYS(seal(at + PART, PART, by_number));
    if (by_number)
        CHECK((unsigned char *)syscall(SYS_brk, at) == end);
    else
        CHECK(brk(at) == 0);
    CHECK(sbrk(-(intptr_t)ALL) == end && sbrk(0) == end);
    churn();
    verify(at, ALL, 40);
    SYS(brk(at + 2 * PART));
    churn();
    verify(at, 2 * PART, 40);
    SYS(brk(at + ALL));
    verify_zero(at + 2 * PART, PART);
}

/* So many that none could be noted by itself. */
static void seals_many(void)
{
    enum { SEALS = 300 };
    size_t bytes = 2 * SEALS * PAGE;
    unsigned char *at = map(bytes);
    fill(at, bytes, 50);
    churn();
    for (size_t i = 0; i < SEALS; i++)
        SYS(seal(at + (2 * i + 1) * PAGE, PAGE, i & 1));
    churn();
    REFUSED(munmap(at, bytes), EPERM);
    REFUSED(munmap(at + bytes - 2 * PAGE, 2 * PAGE), EPERM);
    REFUSED(mremap(at + bytes - 4 * PAGE, 4 * PAGE, PAGE, 0), EPERM);
    churn();
    verify(at, bytes, 50);
    for (size_t i = 0; i < SEALS; i += 7)
        SYS(munmap(at + 2 * i * PAGE, PAGE));
    churn();
    for (size_t i = 0; i < SEALS; i++) {
        if (i % 7)
            verify_from(at + 2 * i * PAGE, PAGE, 50, 2 * i);
        verify_from(at + (2 * i + 1) * PAGE, PAGE, 50, 2 * i + 1);
    }
}

int main(void)
{
    if (!has_seals())
        skip("this kernel has no seals (mseal)");
    /* Of a hole nothing is sealed. */
    unsigned char *at = map(ALL);
    fill(at, ALL, 1);
    SYS(munmap(at + PART, PART));
    REFUSED(seal(at, ALL, false), ENOMEM);
    SYS(munmap(at, ALL));
    for (uint64_t round = 0; round < 2; round++)
        seals(10 + round, round);
    discards();
    withholds();
    keeps_its_heap(false);
    keeps_its_heap(true);
    seals_many();
    return 0;
}
