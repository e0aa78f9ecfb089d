/* Memory that is all there and in use may become huge pages, under the program's hands.
 * Meanwhile it is written by several threads, parts are discarded and replaced, it is
 * shared with a child and moved; and when memory gets short, parts of it leave. What was
 * written stays, what was discarded is zero. */
#include "hazard.h"

#define HUGE (2 * MIB)
#define HOT (8 * HUGE)
#define THREADS 2
/* Long enough for several ranges to be looked at and collapsed. */
#define ROUNDS 40

/* Without a free block nothing can become a huge page. */
static void need_huge_block(void)
{
    int fd = open("/proc/sys/vm/compact_memory", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t ignored = write(fd, "1", 1);
        (void)ignored;
        close(fd);
    }
    if (access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) != 0)
        skip("this kernel has no transparent huge pages");
    FILE *file = fopen("/proc/buddyinfo", "r");
    if (!file)
        skip("nothing says whether there is room for a huge page");
    char line[512];
    long free_blocks = 0;
    while (fgets(line, sizeof line, file)) {
        char *field = strtok(line, " \n");
        for (int i = 0; field; i++, field = strtok(NULL, " \n"))
            if (i >= 4 + 9)
                free_blocks += atol(field);
    }
    fclose(file);
    if (free_blocks < (long)(2 * HOT / HUGE))
        skip("there are too few free blocks of 2 MiB");
}

/* Every page is counted up by everybody, in a word of its own for each. */
static _Atomic uint64_t *hot;

static void *count_up(void *number)
{
    size_t word = 8 + (uintptr_t)number;
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        for (size_t page = 0; page < HOT / PAGE; page++) {
            uint64_t before = atomic_fetch_add(&hot[page * WORDS + word], 1);
            CHECKF(before == round - 1, "page %zu: counted to %llu in round %llu", page,
                   (unsigned long long)before, (unsigned long long)round);
        }
        usleep(5000);
    }
    return NULL;
}

static void all_counted(unsigned char *at)
{
    uint64_t *words = (uint64_t *)at;
    for (size_t page = 0; page < HOT / PAGE; page++)
        for (size_t thread = 0; thread < THREADS; thread++)
            CHECK(words[page * WORDS + 8 + thread] == ROUNDS);
}

/* Reads it again and again, for as long as it takes to become huge pages. */
static void use(unsigned char *at, size_t bytes, uint64_t seed)
{
    for (int i = 0; i < 10; i++) {
        verify(at, bytes, seed);
        usleep(10000);
    }
}

int main(void)
{
    need_huge_block();
    map(48 * MIB); /* more than the budget is mapped, so that all is managed */

    /* Written while it changes. */
    unsigned char *at = map(HOT);
    memset(at, 0, HOT);
    hot = (_Atomic uint64_t *)at;
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&threads[i], NULL, count_up, (void *)i));
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_join(threads[i], NULL));
    all_counted(at);

    /* Discarded in parts, and whole; filled again, and in use again. */
    fill(at, HOT, 1);
    use(at, HOT, 1);
    SYS(madvise(at + HUGE + 7 * PAGE, 20 * PAGE, MADV_DONTNEED));
    SYS(madvise(at + 2 * HUGE, HUGE, MADV_DONTNEED));
    verify_zero(at + HUGE + 7 * PAGE, 20 * PAGE);
    verify_zero(at + 2 * HUGE, HUGE);
    verify(at, HUGE + 7 * PAGE, 1);
    fill_from(at + HUGE + 7 * PAGE, 20 * PAGE, 1, HUGE / PAGE + 7);
    fill_from(at + 2 * HUGE, HUGE, 1, 2 * HUGE / PAGE);
    use(at, HOT, 1);

    /* Replaced in the middle of one. */
    CHECK(mmap(at + 3 * HUGE + HUGE / 2, HUGE, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + 3 * HUGE + HUGE / 2);
    verify_zero(at + 3 * HUGE + HUGE / 2, HUGE);
    fill_from(at + 3 * HUGE + HUGE / 2, HUGE, 1, (3 * HUGE + HUGE / 2) / PAGE);
    use(at, HOT, 1);

    /* Shared with a child: each has its own from here on, and may have it in huge pages. */
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(at, HOT, 1);
        fill(at + 2 * HUGE, 3 * HUGE, 2);
        for (int i = 0; i < 10; i++) {
            verify(at, 2 * HUGE, 1);
            verify(at + 2 * HUGE, 3 * HUGE, 2);
            usleep(10000);
        }
        verify_from(at + 5 * HUGE, HOT - 5 * HUGE, 1, 5 * HUGE / PAGE);
        _exit(0);
    }
    fill(at, HUGE, 3);
    for (int i = 0; i < 5; i++) {
        verify(at, HUGE, 3);
        verify_from(at + HUGE, HOT - HUGE, 1, HUGE / PAGE);
        usleep(10000);
    }
    wait_ok(child);
    fill(at, HOT, 1);
    use(at, HOT, 1);

    /* Moved, and in use at its new place. */
    unsigned char *to = mremap(at, HOT, HOT + HUGE, MREMAP_MAYMOVE);
    CHECK(to != MAP_FAILED);
    use(to, HOT, 1);
    verify_zero(to + HOT, HUGE);

    /* Memory gets short: parts of it leave, and come back. */
    size_t bytes = 20 * MIB;
    unsigned char *other = map(bytes);
    fill(other, bytes, 4);
    verify(to, HOT, 1);
    verify(other, bytes, 4);
    return 0;
}
