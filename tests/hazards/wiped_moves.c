/* What a child is to find empty (MADV_WIPEONFORK) goes with the mapping: it ends where that is unmapped
 * or mapped over, and moves where that is moved. Other memory at such a place is the child's. */
#include "hazard.h"

enum { PAGES = 512, SOME = 64 };

static const size_t BYTES = PAGES * PAGE;

static unsigned char *marked(uint64_t seed)
{
    unsigned char *at = map(BYTES);
    fill(at, BYTES, seed);
    SYS(madvise(at, BYTES, MADV_WIPEONFORK));
    return at;
}

static unsigned char *map_at(void *at, size_t bytes)
{
    void *mapped = mmap(at, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(mapped == at);
    return mapped;
}

/* A child finds a range with its content, or empty. */
static void child_finds(const unsigned char *at, size_t bytes, uint64_t seed, size_t from, bool empty)
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        if (empty)
            verify_zero(at, bytes);
        else
            verify_from(at, bytes, seed, from);
        _exit(0);
    }
    wait_ok(child);
    verify_from(at, bytes, seed, from);
}

static void unmapped(void)
{
    unsigned char *at = marked(1);
    SYS(munmap(at, BYTES));
    map_at(at, BYTES);
    fill(at, BYTES, 2);
    churn();
    child_finds(at, BYTES, 2, 0, false);
    /* A part of it only. */
    SYS(madvise(at, BYTES, MADV_WIPEONFORK));
    SYS(munmap(at + SOME * PAGE, SOME * PAGE));
    map_at(at + SOME * PAGE, SOME * PAGE);
    fill(at + SOME * PAGE, SOME * PAGE, 3);
    churn();
    child_finds(at + SOME * PAGE, SOME * PAGE, 3, 0, false);
    child_finds(at, SOME * PAGE, 2, 0, true);
    child_finds(at + 2 * SOME * PAGE, BYTES - 2 * SOME * PAGE, 2, 2 * SOME, true);
    SYS(munmap(at, BYTES));
}

static void mapped_over(void)
{
    unsigned char *at = marked(4);
    void *over = at + SOME * PAGE;
    void *mapped = mmap(over, SOME * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(mapped == over);
    fill(over, SOME * PAGE, 5);
    churn();
    child_finds(over, SOME * PAGE, 5, 0, false);
    child_finds(at, SOME * PAGE, 4, 0, true);
    /* One that fails leaves the marks. */
    CHECK(munmap(at + 1, PAGE) == -1 && errno == EINVAL);
    CHECK(mmap(at, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EBADF);
    child_finds(at, SOME * PAGE, 4, 0, true);
    SYS(munmap(at, BYTES));
}

static void moved(void)
{
    unsigned char *at = marked(6), *to = map(2 * BYTES);
    fill(to, 2 * BYTES, 7);
    churn();
    CHECK(mremap(at, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    churn();
    child_finds(to, BYTES, 6, 0, true);
    child_finds(to + BYTES, BYTES, 7, PAGES, false);
    map_at(at, BYTES);
    fill(at, BYTES, 8);
    churn();
    child_finds(at, BYTES, 8, 0, false);
    /* Onto what is marked: the mark is gone with what was there. */
    CHECK(mremap(at, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    churn();
    child_finds(to, BYTES, 8, 0, false);
    SYS(munmap(to, 2 * BYTES));
}

static void grown(void)
{
    unsigned char *at = marked(9);
    SYS(madvise(at, SOME * PAGE, MADV_KEEPONFORK));
    unsigned char *now = mremap(at + SOME * PAGE, BYTES - SOME * PAGE, 4 * BYTES, MREMAP_MAYMOVE);
    CHECK(now != MAP_FAILED);
    verify_from(now, BYTES - SOME * PAGE, 9, SOME);
    fill(now, 4 * BYTES, 10);
    churn();
    child_finds(now, 4 * BYTES, 10, 0, true);
    if (now != at + SOME * PAGE)
        child_finds(at, SOME * PAGE, 9, 0, false);
    /* Shorter, and other memory behind it. */
    CHECK(mremap(now, 4 * BYTES, BYTES, 0) == now);
    map_at(now + BYTES, BYTES);
    fill(now + BYTES, BYTES, 11);
    churn();
    child_finds(now + BYTES, BYTES, 11, 0, false);
    child_finds(now, BYTES, 10, 0, true);
    SYS(munmap(now, 2 * BYTES));
}

#ifdef MREMAP_DONTUNMAP
/* Both places are marked then. */
static void stays(void)
{
    unsigned char *at = marked(12);
    unsigned char *to = mremap(at, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
    if (to == MAP_FAILED && errno == EINVAL)
        return; /* An older kernel. */
    CHECK(to != MAP_FAILED);
    fill(at, BYTES, 13);
    churn();
    child_finds(at, BYTES, 13, 0, true);
    child_finds(to, BYTES, 12, 0, true);
}
#else
static void stays(void) { }
#endif

int main(void)
{
    for (int round = 0; round < 3; round++) {
        unmapped();
        mapped_over();
        moved();
        grown();
        stays();
    }
    return 0;
}
