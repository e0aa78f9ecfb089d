/* A hint says where memory had better be. The kernel heeds it where nothing lies, and programs rely
 * on that: who makes code at run time (LuaJIT) asks for places near its own code, or at low
 * addresses, gives back whatever lies elsewhere, and asks again. */
#include "hazard.h"

enum { AREAS = 4, TRIES = 31, ACCESS = PROT_READ | PROT_WRITE };
static const size_t bytes = 2 * QUARTER;
static const uintptr_t low = 16 * MIB, step = 64 * KIB;

static unsigned char *ask(uintptr_t hint)
{
    unsigned char *at = mmap((void *)hint, bytes, ACCESS, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECKF(at != MAP_FAILED, "mmap near %#lx: %s", hint, strerror(errno));
    return at;
}

/* Memory between two addresses. */
static unsigned char *ask_between(uintptr_t from, uintptr_t to)
{
    static uint64_t asked;
    for (int i = 0; i < TRIES; i++) {
        unsigned char *at = ask((from + mix(++asked) % (to - from - bytes)) / step * step);
        if ((uintptr_t)at + step > from && (uintptr_t)at + bytes <= to)
            return at;
        SYS(munmap(at, bytes));
    }
    FAIL("of %d mappings none lies between %#lx and %#lx", TRIES, from, to);
}

int main(void)
{
    uintptr_t code = (uintptr_t)ask_between;
    unsigned char *areas[2 * AREAS];
    for (uint64_t i = 0; i < 2 * AREAS; i += 2) {
        areas[i] = ask_between(code > GIB ? code - GIB : low, code + GIB);
        areas[i + 1] = ask_between(low, 2 * GIB);
        fill(areas[i], bytes, i);
        fill(areas[i + 1], bytes, i + 1);
    }
    churn();
    churn();
    size_t present = 0, pages = 2 * AREAS * bytes / PAGE;
    for (int i = 0; i < 2 * AREAS; i++)
        present += present_pages(areas[i], bytes);
    if (is_managed())
        CHECKF(present < pages / 2, "%zu of %zu pages are still present after a churn", present, pages);
    for (uint64_t i = 0; i < 2 * AREAS; i++)
        verify(areas[i], bytes, i);

    /* As code is: written, and run from then on. */
    SYS(mprotect(areas[0], bytes, PROT_READ | PROT_EXEC));
    churn();
    verify(areas[0], bytes, 0);
    SYS(mprotect(areas[0], bytes, ACCESS));
    fill(areas[0], bytes, 20);

    /* Where there was some before, and where there is some. */
    SYS(munmap(areas[1], bytes));
    areas[1] = ask((uintptr_t)areas[1]);
    verify_zero(areas[1], bytes);
    unsigned char *beside = ask((uintptr_t)areas[0]);
    CHECK(beside != areas[0]);
    verify_zero(beside, bytes);
    fill(beside, bytes, 21);
    churn();
    verify(areas[0], bytes, 20);
    verify(beside, bytes, 21);
    return 0;
}
