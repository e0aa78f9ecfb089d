/* Mappings of 64 GiB and 1 TiB, far beyond all memory, touched here and there;
 * discarded in large parts, and unmapped all but the end, or the beginning. */
#include "hazard.h"

static void sparse(size_t bytes)
{
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        skip("this machine refuses a mapping of 64 GiB or 1 TiB without reserve");
    enum { TOUCHED = 150 };
    size_t pages = bytes / PAGE;
    for (size_t i = 0; i < TOUCHED; i++)
        fill_from(at + mix(i) % pages * PAGE, PAGE, 8, i);
    churn();
    for (size_t i = 0; i < TOUCHED; i++)
        verify_from(at + mix(i) % pages * PAGE, PAGE, 8, i);
    for (size_t i = 0; i < 20; i++)
        verify_zero(at + (mix(i) % pages ^ 1) * PAGE, PAGE);
    fill_from(at, PAGE, 9, 0);
    fill_from(at + bytes - PAGE, PAGE, 9, 1);
    /* All but a sixteenth at each end. */
    SYS(madvise(at + bytes / 16, bytes / 8 * 7, MADV_DONTNEED));
    for (size_t i = 0; i < TOUCHED; i++) {
        size_t page = mix(i) % pages;
        if (page < pages / 16 || page >= pages - pages / 16)
            verify_from(at + page * PAGE, PAGE, 8, i);
        else
            verify_zero(at + page * PAGE, PAGE);
    }
    /* All but sixteen pages at each end, one of them gone before. */
    SYS(munmap(at + 3 * PAGE, PAGE));
    SYS(munmap(at + 16 * PAGE, bytes - 32 * PAGE));
    churn();
    verify_from(at, PAGE, 9, 0);
    verify_zero(at + PAGE, 2 * PAGE);
    verify_from(at + bytes - PAGE, PAGE, 9, 1);
    verify_zero(at + bytes - 16 * PAGE, 15 * PAGE);
    fill_from(at, PAGE, 10, 0);
    churn();
    verify_from(at, PAGE, 10, 0);
    SYS(munmap(at, 16 * PAGE));
    verify_from(at + bytes - PAGE, PAGE, 9, 1);
    SYS(munmap(at + bytes - 16 * PAGE, 16 * PAGE));
}

int main(void)
{
    sparse(64 * GIB);
    sparse(1024 * GIB);
    return 0;
}
