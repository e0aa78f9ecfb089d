/* Several children have most of their frames in common with their parent, for a while: all
 * read, write and discard pages at random, until one after the other ends. Each sees only what it
 * has written itself, and what was there before. */
#include "hazard.h"
#include <time.h>

#define CHILDREN 4
#define PAGES 4096ul

static unsigned char *at;
/* What each page holds: the number of who wrote it, 0 for zeros. */
static unsigned char written[PAGES];

static long now_ms(void)
{
    struct timespec t;
    SYS(clock_gettime(CLOCK_MONOTONIC, &t));
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void check(size_t page)
{
    if (written[page])
        verify_from(at + page * PAGE, PAGE, written[page], page);
    else
        for (size_t i = 0; i < PAGE; i += 512)
            CHECKF(at[page * PAGE + i] == 0, "page %zu is not zero", page);
}

static void live(unsigned char own, long ms)
{
    uint64_t x = 88172645463325252u * own;
    for (long until = now_ms() + ms; now_ms() < until;) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        size_t page = x % PAGES;
        check(page);
        if (x >> 32 & 7)
            continue;
        if (x >> 40 & 15) {
            fill_from(at + page * PAGE, PAGE, own, page);
            written[page] = own;
            continue;
        }
        size_t count = PAGES - page < 32 ? PAGES - page : 32;
        SYS(madvise(at + page * PAGE, count * PAGE, MADV_DONTNEED));
        memset(written + page, 0, count);
    }
    for (size_t page = 0; page < PAGES; page++)
        check(page);
}

int main(void)
{
    at = map(PAGES * PAGE);
    fill(at, PAGES * PAGE, 1);
    memset(written, 1, PAGES);
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = (pid_t)SYS(fork());
        if (children[i] == 0) {
            live((unsigned char)(i + 2), 100 * (i + 1));
            _exit(0);
        }
    }
    live(100, 450);
    for (int i = 0; i < CHILDREN; i++)
        wait_ok(children[i]);
    /* What was in common is the parent's alone, and leaves like all else. */
    live(101, 50);
    churn();
    for (size_t page = 0; page < PAGES; page++)
        check(page);
    return 0;
}
