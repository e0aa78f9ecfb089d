/* mremap with MREMAP_DONTUNMAP onto memory that has content, while other threads fork and make memory
 * short: the content is where it has moved to, and zeros are where it was. */
#include "hazard.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum { ROUNDS = 25 };
static const size_t bytes = 2 * QUARTER;
static atomic_bool stop;

static void *forker(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0)
            _exit(0);
        wait_ok(child);
    }
    return NULL;
}

int main(void)
{
    /* Both places are parts of one mapping, of which some stays where it is. */
    unsigned char *from = map(4 * bytes), *to = from + 2 * bytes;
    fill(from, 4 * bytes, 1);
    churn(); /* managing begins */
    void *tried = mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to);
    if (tried == MAP_FAILED && errno == EINVAL)
        skip("this kernel has no MREMAP_DONTUNMAP");
    CHECKF(tried == to, "mremap: %s", strerror(errno));
    verify(to, bytes, 1);
    struct churner churner;
    churner_start(&churner);
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, forker, NULL));
    for (int round = 2; round < 2 + often(ROUNDS); round++) {
        verify_zero(from, bytes);
        fill(from, bytes, (uint64_t)round);
        void *moved = mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to);
        CHECKF(moved == to, "mremap: %s", strerror(errno));
        verify(to, bytes, (uint64_t)round);
    }
    atomic_store(&stop, true);
    PTHREAD(pthread_join(thread, NULL));
    churner_stop(&churner);
    verify_from(from + bytes, bytes, 1, bytes / PAGE);
    verify_from(to + bytes, bytes, 1, 3 * bytes / PAGE);
    return 0;
}
