/* A thread unmaps memory, and another maps memory there before munmap has returned: by the C library, or
 * by a system call of its own. What it writes there is its own, and stays. */
#include "hazard.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum { ROUNDS = 40 };
static const size_t bytes = QUARTER;
static unsigned char *place;
/* How often it was unmapped, or is just now; and how often the other thread has had it. */
static atomic_int unmapped, returned;

static void *map_there(bool raw)
{
    int protection = PROT_READ | PROT_WRITE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (!raw)
        return mmap(place, bytes, protection, flags, -1, 0);
    return (void *)syscall(SYS_mmap, place, bytes, protection, flags, -1, 0L);
}

static void *successor(void *rounds)
{
    for (int round = 1; round <= *(int *)rounds; round++) {
        while (atomic_load(&unmapped) < round)
            sched_yield();
        bool raw = round % 2;
        void *at;
        while ((at = map_there(raw)) == MAP_FAILED)
            CHECKF(errno == EEXIST, "mmap: %s", strerror(errno));
        CHECK(at == place);
        uint64_t seed = 1000 + (uint64_t)round;
        fill(place, bytes, seed);
        for (int i = 0; i < 20; i++)
            sched_yield();
        verify(place, bytes, seed);
        SYS(munmap(place, bytes));
        atomic_store(&returned, round);
    }
    return NULL;
}

int main(void)
{
    int rounds = often(ROUNDS);
    place = map(bytes);
    churn(); /* managing begins */
    struct churner churner;
    churner_start(&churner);
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, successor, &rounds));
    for (int round = 1; round <= rounds; round++) {
        fill(place, bytes, (uint64_t)round);
        verify(place, bytes, (uint64_t)round);
        atomic_store(&unmapped, round);
        SYS(munmap(place, bytes));
        while (atomic_load(&returned) < round)
            sched_yield();
        CHECK(map_there(false) == place);
        verify_zero(place, bytes);
    }
    PTHREAD(pthread_join(thread, NULL));
    churner_stop(&churner);
    return 0;
}
