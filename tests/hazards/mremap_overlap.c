/* A move onto a place that overlaps is refused, and nothing has changed, also where what is to be
 * moved lies in several mappings. */
#include "hazard.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum { PAGES = 300, BEGIN = 100, LENGTH = 150 };

static void refused(unsigned char *at, long by, int flags)
{
    unsigned char *from = at + BEGIN * PAGE, *to = from + by * (long)PAGE;
    flags |= MREMAP_MAYMOVE | MREMAP_FIXED;
    void *moved = mremap(from, LENGTH * PAGE, LENGTH * PAGE, flags, to);
    CHECKF(moved == MAP_FAILED && errno == EINVAL, "by %ld pages, flags %d: %p, %s", by, flags, moved,
           strerror(errno));
}

static void in_several(bool is_torn)
{
    enum { AT = BEGIN + 40, PART = 20 };
    unsigned char *at = map(PAGES * PAGE);
    fill(at, PAGES * PAGE, 1);
    churn();
    if (is_torn)
        SYS(munmap(at + AT * PAGE, PART * PAGE));
    else
        SYS(mprotect(at + AT * PAGE, PART * PAGE, PROT_READ));
    static const long moves[] = { -90, -1, 1, 40 };
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
        refused(at, moves[i], 0);
        refused(at, moves[i], MREMAP_DONTUNMAP);
    }
    verify(at, AT * PAGE, 1);
    if (!is_torn)
        verify_from(at + AT * PAGE, PART * PAGE, 1, AT);
    verify_from(at + (AT + PART) * PAGE, (PAGES - AT - PART) * PAGE, 1, AT + PART);
    SYS(munmap(at, PAGES * PAGE));
}

int main(void)
{
    in_several(true);
    in_several(false);
    return 0;
}
