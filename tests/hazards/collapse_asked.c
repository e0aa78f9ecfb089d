/* A program has its memory made huge pages (MADV_COLLAPSE) of which some or all is absent. As on
 * plain Linux that succeeds, changes no content, and leaves errors what they are. */
#include "hazard.h"

#define HUGE (2 * MIB)
#define COLLAPSE 25

static int collapse(void *at, size_t bytes)
{
    return madvise(at, bytes, COLLAPSE) == 0 ? 0 : errno;
}

/* The kernel may have no huge page left, which is nobody's fault. */
static void must_collapse(void *at, size_t bytes)
{
    int error = collapse(at, bytes);
    /* A page was locked at that moment, or on its way elsewhere. */
    for (int i = 0; error == EAGAIN && i < 3000; i++) {
        usleep(20000);
        error = collapse(at, bytes);
    }
    if (error == ENOMEM)
        skip("this machine has too few huge pages");
    CHECKF(error == 0, "MADV_COLLAPSE: %s", strerror(error));
}

/* So many bytes in huge pages that the kernel has made of them. */
static size_t in_huge_pages(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    CHECK(file);
    char line[256];
    unsigned long kib = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "AnonHugePages: %lu", &kib) == 1)
            break;
    fclose(file);
    return kib * KIB;
}

/* Sweeps over more than the budget that this program is given. */
static void churn_more(void)
{
    static uint64_t *words;
    const size_t bytes = 12 * HUGE;
    if (!words)
        words = map(bytes);
    for (size_t page = 0; page < bytes / PAGE; page++)
        words[page * WORDS] = page;
}

static unsigned char *aligned(size_t bytes)
{
    uintptr_t at = (uintptr_t)map(bytes + HUGE);
    return (unsigned char *)((at + HUGE - 1) & ~(HUGE - 1));
}

int main(void)
{
    size_t bytes = 8 * HUGE;
    unsigned char *at = aligned(bytes);
    fill(at, bytes, 1);
    int known = collapse(at, HUGE);
    if (known == EINVAL)
        skip("this kernel has no MADV_COLLAPSE, or no huge pages");
    churn_more();

    /* All of it absent. */
    must_collapse(at, 2 * HUGE);
    /* A policy may split what it sees no use of, at once. */
    for (int tries = 0; is_managed() && in_huge_pages() < HUGE; tries++) {
        CHECKF(tries < 50, "%zu bytes are in huge pages", in_huge_pages());
        must_collapse(at, 2 * HUGE);
    }
    verify(at, bytes, 1);

    /* Some of it absent, some discarded, some never touched. */
    churn_more();
    verify(at, HUGE / 2, 1);
    SYS(madvise(at + HUGE, 16 * PAGE, MADV_DONTNEED));
    must_collapse(at, 2 * HUGE);
    verify_zero(at + HUGE, 16 * PAGE);
    verify(at, HUGE, 1);
    fill_from(at + HUGE, 16 * PAGE, 1, HUGE / PAGE);
    unsigned char *partly = aligned(2 * HUGE);
    fill(partly, 16 * PAGE, 2);
    fill(partly + HUGE, 16 * PAGE, 2);
    churn_more();
    must_collapse(partly, 2 * HUGE);
    verify(partly, 16 * PAGE, 2);
    verify_zero(partly + 16 * PAGE, HUGE - 16 * PAGE);

    /* More than there is room for. */
    must_collapse(at, bytes);
    verify(at, bytes, 1);
    churn_more();
    verify(at, bytes, 1);

    /* Read only. */
    SYS(mprotect(at, HUGE, PROT_READ));
    churn_more();
    must_collapse(at, HUGE);
    verify(at, bytes, 1);
    SYS(mprotect(at, HUGE, PROT_READ | PROT_WRITE));
    fill(at, HUGE, 1);

    /* While another thread writes, and after a fork. */
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        must_collapse(at, 2 * HUGE);
        verify(at, bytes, 1);
        _exit(0);
    }
    must_collapse(at + HUGE, HUGE);
    verify(at, bytes, 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECKF(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77),
           "the child: %#x", (unsigned)status);

    /* Errors stay. */
    CHECK(collapse(at + 1, HUGE) == EINVAL);
    unsigned char *untouched = aligned(HUGE);
    CHECK(collapse(untouched, HUGE) == EINVAL);
    SYS(munmap(untouched, HUGE));
    CHECK(collapse(untouched, HUGE) == ENOMEM);
    verify(at, bytes, 1);
    return 0;
}
