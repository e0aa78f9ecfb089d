/* A program has much of its memory in common with a child, and discards of it what is just about to
 * leave. Others of its threads need room meanwhile. Nobody waits for ever, and what was discarded
 * is zeros. */
#include "hazard.h"

enum { ROUNDS = 5 };
static const size_t bytes = 3 * QUARTER;
static unsigned char *at, *more;
static atomic_bool stop;

/* At once, while whoever makes room may hang at what was chosen to leave; and then needs room, too. */
static void *discards_all(void *unused)
{
    usleep(50000);
    SYS(madvise(at, bytes, MADV_DONTNEED));
    while (!atomic_load(&stop))
        for (size_t page = 0; page < 4 * QUARTER / PAGE; page++)
            ((volatile unsigned char *)more)[page * PAGE] = 1;
    return unused;
}

/* From the last page to the first, a moment apart, as long as it takes for what has been chosen to
 * leave; then over and over. */
static void *discards_pages(void *unused)
{
    for (size_t page = bytes / PAGE; page-- > 0;) {
        SYS(madvise(at + page * PAGE, PAGE, MADV_DONTNEED));
        if (page % 8 == 0)
            usleep(500);
    }
    while (!atomic_load(&stop))
        SYS(madvise(at, bytes, MADV_DONTNEED));
    return unused;
}

int main(void)
{
    at = map(bytes);
    more = map(4 * QUARTER);
    unsigned char *kept = map(QUARTER);
    for (int round = 0; round < ROUNDS; round++) {
        /* What was written first leaves first. */
        fill(at, bytes, (uint64_t)round);
        fill(kept, QUARTER, 9);
        int ends[2];
        SYS(pipe(ends));
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            char byte;
            SYS(close(ends[1]));
            CHECK(SYS(read(ends[0], &byte, 1)) == 0);
            verify(at, bytes, (uint64_t)round);
            _exit(0);
        }
        SYS(close(ends[0]));
        atomic_store(&stop, false);
        struct churner churner;
        atomic_init(&churner.stop, false);
        atomic_init(&churner.sweeps, 0);
        PTHREAD(pthread_create(&churner.thread, NULL, churner_main, &churner));
        pthread_t thread;
        PTHREAD(pthread_create(&thread, NULL, round == 0 ? discards_all : discards_pages, NULL));
        /* The first time longer than anything that may hang for a while. */
        usleep(round == 0 ? 450000 : 30000);
        atomic_store(&stop, true);
        PTHREAD(pthread_join(thread, NULL));
        churner_stop(&churner);
        verify_zero(at, bytes);
        verify(kept, QUARTER, 9);
        SYS(close(ends[1]));
        wait_ok(child);
    }
    return 0;
}
