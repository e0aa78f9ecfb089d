/* Advice that must not change content: whatever is advised, in whatever state
 * the pages are, what was written is read. */
#include "hazard.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

int main(void)
{
    static const struct {
        int advice;
        const char *name;
    } hints[] = {
        {MADV_NORMAL, "NORMAL"},         {MADV_RANDOM, "RANDOM"},
        {MADV_SEQUENTIAL, "SEQUENTIAL"}, {MADV_WILLNEED, "WILLNEED"},
        {MADV_COLD, "COLD"},             {MADV_PAGEOUT, "PAGEOUT"},
        {MADV_HUGEPAGE, "HUGEPAGE"},     {MADV_COLLAPSE, "COLLAPSE"},
        {MADV_NOHUGEPAGE, "NOHUGEPAGE"}, {MADV_MERGEABLE, "MERGEABLE"},
        {MADV_UNMERGEABLE, "UNMERGEABLE"}, {MADV_DONTDUMP, "DONTDUMP"},
        {MADV_DODUMP, "DODUMP"},         {MADV_POPULATE_READ, "POPULATE_READ"},
        {MADV_POPULATE_WRITE, "POPULATE_WRITE"},
    };
    size_t bytes = 4 * QUARTER, part = 16 * PAGE;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        if (i % 3 == 0)
            churn();
        /* A hint may be refused (a kernel without it), never damage. */
        if (madvise(at + i % 8 * part, 2 * part, hints[i].advice) == -1)
            CHECKF(errno == EINVAL || errno == EAGAIN || errno == ENOMEM || errno == EBUSY
                       || errno == EFAULT,
                   "%s: %s", hints[i].name, strerror(errno));
        verify_from(at + i % 8 * part, 2 * part, 1, i % 8 * 16);
    }
    churn();
    verify(at, bytes, 1);
    SYS(madvise(at, bytes, MADV_WILLNEED));
    SYS(madvise(at, bytes, MADV_COLD));
    verify(at, bytes, 1);

    /* Populating memory that was never touched. */
    unsigned char *fresh = map(2 * QUARTER);
    if (madvise(fresh, 2 * QUARTER, MADV_POPULATE_WRITE) == -1)
        CHECKF(errno == EINVAL, "POPULATE_WRITE: %s", strerror(errno));
    verify_zero(fresh, 2 * QUARTER);
    fill(fresh, 2 * QUARTER, 2);
    churn();
    if (madvise(fresh, 2 * QUARTER, MADV_POPULATE_READ) == -1)
        CHECKF(errno == EINVAL, "POPULATE_READ: %s", strerror(errno));
    verify(fresh, 2 * QUARTER, 2);

    /* The same through process_madvise, on ourselves, many ranges at once. */
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (self != -1) {
        struct iovec range[8];
        for (size_t i = 0; i < 8; i++)
            range[i] = (struct iovec){at + i * 2 * part, part};
        long done = syscall(SYS_process_madvise, self, range, 8, MADV_PAGEOUT, 0);
        CHECKF(done == -1 || done <= (long)(8 * part), "process_madvise: %ld", done);
        churn();
        done = syscall(SYS_process_madvise, self, range, 8, MADV_COLD, 0);
        CHECKF(done == -1 || done == (long)(8 * part), "process_madvise: %ld", done);
        verify(at, bytes, 1);
    }
    return 0;
}
