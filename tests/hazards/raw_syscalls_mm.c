/* mmap, munmap, madvise, mremap and mprotect as bare system calls, past every
 * wrapper of the C library: whoever watches the wrappers does not see them. Once by
 * the instruction itself, and once by `syscall`, which may be watched. */
#include "instruction.h"

static long by_library(long number, long a, long b, long c, long d, long e, long f)
{
    return syscall(number, a, b, c, d, e, f);
}

static long (*call)(long, long, long, long, long, long, long);
#define ASK(number, at, bytes, c) SYS(call(number, (long)(at), (long)(bytes), c, 0, 0, 0))

static void *raw_map(void *hint, size_t bytes, int flags)
{
    return (void *)SYS(call(SYS_mmap, (long)hint, (long)bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0));
}

static void change_memory(void)
{
    size_t bytes = 4 * QUARTER;
    /* Unmapped behind the wrappers' back, then the address is used again. */
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    ASK(SYS_munmap, at, bytes, 0);
    unsigned char *again = raw_map(at, bytes, MAP_FIXED_NOREPLACE);
    CHECK(again == at);
    verify_zero(at, bytes);
    fill(at, bytes, 2);
    churn();
    verify(at, bytes, 2);
    ASK(SYS_munmap, at, bytes / 2, 0);
    churn();
    verify_from(at + bytes / 2, bytes / 2, 2, bytes / 2 / PAGE);
    SYS(munmap(at, bytes));

    /* And by the wrappers, mixed: mapped by one, unmapped by the other. */
    at = map(bytes);
    CHECK(at);
    verify_zero(at, bytes);
    fill(at, bytes, 3);
    churn();
    ASK(SYS_munmap, at + bytes / 4, bytes / 4, 0);
    unsigned char *fresh = map(bytes / 4);
    verify_zero(fresh, bytes / 4);
    fill(fresh, bytes / 4, 4);
    churn();
    verify(at, bytes / 4, 3);
    verify_from(at + bytes / 2, bytes / 2, 3, bytes / 2 / PAGE);
    verify(fresh, bytes / 4, 4);
    SYS(munmap(fresh, bytes / 4));
    SYS(munmap(at, bytes));

    /* Discarded behind the wrappers' back: zero, not the stored content. */
    at = map(bytes);
    fill(at, bytes, 5);
    churn();
    ASK(SYS_madvise, at, bytes / 2, MADV_DONTNEED);
    verify_zero(at, bytes / 2);
    verify_from(at + bytes / 2, bytes / 2, 5, bytes / 2 / PAGE);
    fill(at, bytes / 2, 6);
    churn();
    verify(at, bytes / 2, 6);

    /* Moved behind the wrappers' back: the content goes with it. */
    fill(at, bytes, 7);
    churn();
    unsigned char *reserve = map(bytes * 2);
    unsigned char *moved = (void *)SYS(call(SYS_mremap, (long)at, (long)bytes, (long)bytes * 2,
                                            MREMAP_MAYMOVE | MREMAP_FIXED, (long)reserve, 0));
    CHECK(moved == reserve);
    verify(moved, bytes, 7);
    verify_zero(moved + bytes, bytes);
    fresh = raw_map(at, bytes, MAP_FIXED_NOREPLACE); /* the old place is free and fresh */
    CHECK(fresh == at);
    verify_zero(at, bytes);

    /* Protected behind the wrappers' back. */
    fill(moved, bytes, 8);
    churn();
    ASK(SYS_mprotect, moved, bytes, PROT_READ);
    verify(moved, bytes, 8);
    ASK(SYS_mprotect, moved, bytes, PROT_READ | PROT_WRITE);
    fill(moved, bytes, 9);
    churn();
    verify(moved, bytes, 9);
    SYS(munmap(at, bytes));
    SYS(munmap(moved, 2 * bytes));
}

int main(void)
{
    call = instruction;
    change_memory();
    call = by_library;
    change_memory();
    return 0;
}
