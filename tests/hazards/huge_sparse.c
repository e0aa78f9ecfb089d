/* A mapping of 64 GiB, far beyond all memory, touched here and there. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 64 * GIB;
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        skip("this machine refuses a mapping of 64 GiB without reserve");
    enum { TOUCHED = 300 };
    for (size_t i = 0; i < TOUCHED; i++)
        fill_from(at + mix(i) % (bytes / PAGE) * PAGE, PAGE, 8, i);
    churn();
    for (size_t i = 0; i < TOUCHED; i++)
        verify_from(at + mix(i) % (bytes / PAGE) * PAGE, PAGE, 8, i);
    for (size_t i = 0; i < 50; i++)
        verify_zero(at + (mix(i) % (bytes / PAGE) ^ 1) * PAGE, PAGE);
    fill_from(at + bytes - PAGE, PAGE, 9, 0);
    SYS(munmap(at, bytes - 16 * PAGE));
    churn();
    verify_from(at + bytes - PAGE, PAGE, 9, 0);
    SYS(munmap(at + bytes - 16 * PAGE, 16 * PAGE));
    return 0;
}
