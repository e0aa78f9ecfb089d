/* A program that maps little and makes it large by mremap alone: who manages memory by what is
 * mapped would miss it. It grows in place and by moving, and is filled backwards. */
#include "hazard.h"

#define LARGE (16 * QUARTER)

/* Whatever it began as, most of it must have left for want of room. */
static void is_large_now(unsigned char *at, const char *what)
{
    size_t pages = LARGE / PAGE;
    for (size_t page = pages; page-- > 0;)
        fill_from(at + page * PAGE, PAGE, 5, page);
    size_t present = present_pages(at, LARGE);
    if (is_managed())
        CHECKF(present < pages * 3 / 4, "%zu of %zu pages of %s are present", present, pages, what);
    verify(at, LARGE, 5);
}

static void *grown(unsigned char *at, size_t from, size_t step)
{
    for (size_t bytes = from; bytes < LARGE;) {
        size_t next = bytes + (step ? step : bytes);
        next = next < LARGE ? next : LARGE;
        at = mremap(at, bytes, next, MREMAP_MAYMOVE);
        CHECKF(at != MAP_FAILED, "mremap to %zu: %s", next, strerror(errno));
        verify_zero(at + bytes, next - bytes);
        for (; bytes < next; bytes += PAGE)
            fill_from(at + bytes, PAGE, 2, bytes / PAGE);
    }
    verify_from(at + from, LARGE - from, 2, from / PAGE);
    return at;
}

int main(void)
{
    /* Alone, from four pages on, by doubling. */
    unsigned char *at = grown(map(4 * PAGE), 4 * PAGE, 0);
    is_large_now(at, "what has doubled");

    /* From what is managed, with something in the way each time. */
    unsigned char *other = map(QUARTER);
    unsigned char *in_the_way = mmap(other + QUARTER, PAGE, PROT_NONE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    other = grown(other, QUARTER, 7 * PAGE);
    is_large_now(other, "what has grown in steps");
    verify(at, LARGE, 5);
    if (in_the_way != MAP_FAILED)
        SYS(munmap(in_the_way, PAGE));

    /* Smaller, and once more. */
    at = mremap(at, LARGE, QUARTER, 0);
    CHECK(at != MAP_FAILED);
    verify(at, QUARTER, 5);
    at = grown(at, QUARTER, 0);
    is_large_now(at, "what was cut off");

    /* What is not ordinary stays what it is. */
    unsigned char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    unsigned char *longer = mremap(shared, PAGE, 8 * QUARTER, MREMAP_MAYMOVE);
    CHECK(longer != MAP_FAILED);
    longer[0] = 9;
    pid_t child = fork();
    SYS(child);
    if (child == 0) {
        longer[0]++;
        _exit(0);
    }
    SYS(waitpid(child, NULL, 0));
    CHECK(longer[0] == 10);
    SYS(munmap(at, LARGE));
    SYS(munmap(other, LARGE));
    CHECK(mremap(at, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    return 0;
}
