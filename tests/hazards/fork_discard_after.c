/* What the parent discards, unmaps or moves after it has forked is no concern of
 * the child's, even while the child is still inside fork(). */
#include "hazard.h"

#define BYTES (4 * QUARTER)
static struct shared {
    atomic_int forked, discarded;
} *shared;
static unsigned char *advised, *unmapped, *moved;

static void in_child(void)
{
    /* The parent's other thread may go on; wait until it has. */
    atomic_store(&shared->forked, 1);
    for (int i = 0; i < 120000 && !atomic_load(&shared->discarded); i++)
        usleep(500);
    CHECKF(atomic_load(&shared->discarded), "the parent's other thread did not go on");
    verify(advised, BYTES, 1);
    verify(unmapped, BYTES, 2);
    verify(moved, BYTES, 3);
}

static void *other_thread(void *unused)
{
    while (!atomic_load(&shared->forked))
        usleep(200);
    SYS(madvise(advised, BYTES, MADV_DONTNEED));
    SYS(munmap(unmapped, BYTES));
    void *at = mremap(moved, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED);
    moved = at;
    atomic_store(&shared->discarded, 1);
    return unused;
}

int main(void)
{
    shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    advised = map(BYTES);
    unmapped = map(BYTES);
    moved = map(BYTES);
    fill(advised, BYTES, 1);
    fill(unmapped, BYTES, 2);
    fill(moved, BYTES, 3);
    churn();
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, other_thread, NULL));
    PTHREAD(pthread_atfork(NULL, NULL, in_child));
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        churn();
        verify(advised, BYTES, 1);
        verify(unmapped, BYTES, 2);
        verify(moved, BYTES, 3);
        _exit(0);
    }
    PTHREAD(pthread_join(thread, NULL));
    verify_zero(advised, BYTES);
    verify(moved, BYTES, 3);
    wait_ok(child);
    return 0;
}
