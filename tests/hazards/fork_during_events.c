/* One kind of change of memory at a time, without a pause, beside a thread that forks: each child has
 * it as it was at some moment, before, after, or while it was written. What is read and carried out
 * by the parent after the copy was made must reach the child, and nothing that came later. */
#include "hazard.h"

enum { FORKS = 2, PAGES = 64 };
static const size_t bytes = PAGES * PAGE;
static atomic_bool stop;
static unsigned char *at;
static unsigned char *still;

/* Whether a page has been written from its first word on up to some word, and is zeros from there. */
static void check_written(const unsigned char *page, uint64_t seed, size_t number)
{
    const uint64_t *words = (const void *)page;
    size_t word = 0;
    while (word < WORDS && words[word] == pattern(seed, number, word))
        word++;
    for (; word < WORDS; word++)
        CHECKF(words[word] == 0, "page %zu holds neither content nor zeros at word %zu", number, word);
}
/* Memory that is mapped: msync(2) says so of no other. */
static bool is_mapped(const unsigned char *page) { return msync((void *)(uintptr_t)page, PAGE, MS_ASYNC) == 0; }
static void check_any(void)
{
    for (size_t page = 0; page < PAGES; page++)
        if (is_mapped(at + page * PAGE))
            check_written(at + page * PAGE, 2, page);
}
static void check_all(void) { verify(at, bytes, 2); }

static void unmap_whole(void)
{
    SYS(munmap(at, bytes));
    CHECK(mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    fill(at, bytes, 2);
}
static void unmap_part(void)
{
    unsigned char *hole = at + bytes / 4;
    SYS(munmap(hole, bytes / 2));
    CHECK(mmap(hole, bytes / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == hole);
    for (size_t page = PAGES / 4; page < 3 * PAGES / 4; page++)
        for (size_t word = 0; word < WORDS; word++)
            ((uint64_t *)(void *)(at + page * PAGE))[word] = pattern(2, page, word);
}
static void check_hole(void)
{
    verify(at, bytes / 4, 2);
    verify_from(at + 3 * bytes / 4, bytes / 4, 2, 3 * PAGES / 4);
    check_any();
}
static void map_over(void)
{
    CHECK(mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    fill(at, bytes, 2);
}
static void discard(void)
{
    SYS(madvise(at, bytes, MADV_DONTNEED));
    fill(at, bytes, 2);
}
static void protect(void)
{
    SYS(mprotect(at, bytes, PROT_NONE));
    SYS(mprotect(at + bytes / 4, bytes / 2, PROT_READ));
    SYS(mprotect(at, bytes, PROT_READ | PROT_WRITE));
}
static void check_protected(void)
{
    SYS(mprotect(at, bytes, PROT_READ | PROT_WRITE));
    check_all();
}
static unsigned char *heap;
static void move_break(void)
{
    CHECK(brk(heap + bytes) == 0);
    fill(heap, bytes, 2);
    CHECK(brk(heap) == 0);
}
static void check_break(void)
{
    for (size_t page = 0; page < PAGES; page++)
        if (is_mapped(heap + page * PAGE))
            check_written(heap + page * PAGE, 2, page);
}
static void touch_first(void)
{
    unsigned char *new = map(8 * QUARTER);
    for (size_t page = 0; page < 8 * QUARTER / PAGE; page++)
        new[page * PAGE] = 1;
    SYS(munmap(new, 8 * QUARTER));
    verify(at, bytes, 2);
}
static void make_huge(void)
{
    static unsigned char *large;
    const size_t huge = 2 * MIB;
    if (!large) {
        large = map(2 * huge);
        large = (unsigned char *)(((uintptr_t)large + huge - 1) & ~(huge - 1));
        fill(large, huge, 2);
    }
    (void)madvise(large, huge, MADV_HUGEPAGE);
    (void)madvise(large, huge, 25 /* MADV_COLLAPSE; not of every kernel, nor at every moment */);
    verify(large, huge, 2);
    (void)madvise(large, huge, MADV_NOHUGEPAGE);
}

static const struct {
    void (*change)(void), (*check)(void);
} events[] = {
    {unmap_whole, check_any},   {unmap_part, check_hole},  {map_over, check_any},    {discard, check_any},
    {protect, check_protected}, {move_break, check_break}, {touch_first, check_all}, {make_huge, check_all},
};

static void *changes(void *number)
{
    void (*change)(void) = events[(uintptr_t)number].change;
    while (!atomic_load(&stop))
        change();
    return NULL;
}

int main(void)
{
    at = map(bytes);
    still = map(6 * QUARTER);
    fill(still, 6 * QUARTER, 1);
    churn();
    void *volatile first = malloc(1); /* the allocator's heap lies below */
    CHECK(first);
    heap = (unsigned char *)(((uintptr_t)sbrk(0) + PAGE - 1) & ~(PAGE - 1));
    for (uintptr_t i = 0; i < sizeof events / sizeof *events; i++) {
        fill(at, bytes, 2);
        atomic_store(&stop, false);
        pthread_t thread;
        PTHREAD(pthread_create(&thread, NULL, changes, (void *)i));
        for (int n = 0; n < often(FORKS); n++) {
            pid_t child = (pid_t)SYS(fork());
            if (child == 0) {
                events[i].check();
                verify(still, 6 * QUARTER, 1);
                events[i].check();
                _exit(0);
            }
            int status;
            SYS(waitpid(child, &status, 0));
            CHECKF(WIFEXITED(status) && WEXITSTATUS(status) == 0, "event %zu, fork %d: %x", (size_t)i, n, (unsigned)status);
        }
        atomic_store(&stop, true);
        PTHREAD(pthread_join(thread, NULL));
    }
    return 0;
}
