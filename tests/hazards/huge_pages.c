/* Transparent huge pages are asked for: aligned memory is used in full and in
 * part, discarded in parts, and read back. */
#include "hazard.h"

int main(void)
{
    size_t huge = 2 * MIB, bytes = 4 * huge;
    unsigned char *raw = map(bytes + huge);
    unsigned char *at = (unsigned char *)(((uintptr_t)raw + huge - 1) / huge * huge);
    if (madvise(at, bytes, MADV_HUGEPAGE) == -1)
        CHECKF(errno == EINVAL, "MADV_HUGEPAGE: %s", strerror(errno));
    fill(at, bytes, 1);
    churn();
    verify(at, bytes, 1);
    SYS(madvise(at + huge, 3 * PAGE, MADV_DONTNEED)); /* splits the second one */
    SYS(madvise(at + 2 * huge, huge, MADV_DONTNEED)); /* drops the third one whole */
    churn();
    verify(at, huge, 1);
    verify_zero(at + huge, 3 * PAGE);
    verify_from(at + huge + 3 * PAGE, huge - 3 * PAGE, 1, huge / PAGE + 3);
    verify_zero(at + 2 * huge, huge);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify_from(at + 3 * huge, huge, 1, 3 * huge / PAGE);
        fill(at, huge, 2);
        churn();
        verify(at, huge, 2);
        _exit(0);
    }
    wait_ok(child);
    /* One byte in each: the rest is zero. */
    unsigned char *sparse = map(bytes + huge);
    unsigned char *aligned = (unsigned char *)(((uintptr_t)sparse + huge - 1) / huge * huge);
    madvise(aligned, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes; i += huge)
        aligned[i + 12345] = 9;
    churn();
    for (size_t i = 0; i < bytes; i += 8)
        CHECK(*(uint64_t *)(aligned + i) == 0 || i % huge == 12345 / 8 * 8);
    SYS(munmap(aligned + huge / 2, huge)); /* across the border of two */
    churn();
    CHECK(aligned[12345] == 9 && aligned[2 * huge + 12345] == 9);
    return 0;
}
