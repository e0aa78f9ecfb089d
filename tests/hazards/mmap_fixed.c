/* MAP_FIXED over memory in use replaces it, MAP_FIXED_NOREPLACE refuses to. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 8 * QUARTER, part = 2 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    CHECK(mmap(at + part, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == at + part);
    verify_zero(at + part, part);
    CHECK(mmap(at + 3 * part, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
          == at + 3 * part);
    verify_zero(at + 3 * part, PAGE);
    churn();
    verify(at, part, 1);
    verify_zero(at + part, part);
    verify_from(at + 2 * part, part, 1, 2 * part / PAGE);
    verify_from(at + 3 * part + PAGE, part - PAGE, 1, 3 * part / PAGE + 1);
    fill(at + part, part, 2);
    churn();
    verify(at + part, part, 2);

    CHECK(mmap(at + part / 2, part, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED);
    CHECK(errno == EEXIST);
    verify(at, part, 1);
    verify(at + part, part, 2);
    SYS(munmap(at + part, part));
    CHECK(mmap(at + part, part, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at + part);
    verify_zero(at + part, part);

    /* PROT_NONE reservation, then committed piece by piece as allocators do. */
    unsigned char *reserved = mmap(NULL, 64 * QUARTER, PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(reserved != MAP_FAILED);
    for (size_t i = 0; i < 8; i++) {
        unsigned char *piece = reserved + i * 7 * QUARTER;
        if (i % 2)
            CHECK(mmap(piece, QUARTER, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == piece);
        else
            SYS(mprotect(piece, QUARTER, PROT_READ | PROT_WRITE));
        verify_zero(piece, QUARTER);
        fill(piece, QUARTER, i);
    }
    churn();
    for (size_t i = 0; i < 8; i++)
        verify(reserved + i * 7 * QUARTER, QUARTER, i);
    SYS(munmap(reserved, 64 * QUARTER));
    return 0;
}
