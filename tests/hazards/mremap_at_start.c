/* A mapping is made longer while managing begins. What it has grown by is managed as the rest of it is: otherwise the
 * kernel would have two mappings of it, and would refuse to make them longer as one. */
#include "hazard.h"

#define LARGE (2 * QUARTER)
static atomic_bool begins;

static void *begin(void *unused)
{
    (void)unused;
    atomic_store(&begins, true);
    fill(map(8 * MIB), QUARTER, 1); /* far more than the budget */
    return NULL;
}

int main(void)
{
    unsigned char *at = map(QUARTER);
    fill(at, QUARTER, 2);
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, begin, NULL));
    while (!atomic_load(&begins))
        sched_yield();
    usleep(50 * 1000); /* where beginning is held up, this ends in its middle */
    for (size_t bytes = QUARTER; bytes < LARGE; bytes += PAGE) {
        at = mremap(at, bytes, bytes + PAGE, MREMAP_MAYMOVE);
        CHECKF(at != MAP_FAILED, "mremap from %zu KiB: %s", bytes / KIB, strerror(errno));
        fill_from(at + bytes, PAGE, 2, bytes / PAGE);
    }
    PTHREAD(pthread_join(thread, NULL));
    churn();
    churn();
    verify(at, LARGE, 2);
    return 0;
}
