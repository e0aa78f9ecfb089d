/* A thread is cancelled in the middle of its faults, asynchronously and at
 * cancellation points; the memory and every other thread stay sound. */
#include "hazard.h"

static const size_t bytes = 6 * QUARTER;
static unsigned char *at;
static atomic_int cleanups;

static void cleanup(void *argument)
{
    (void)argument;
    verify_from(at, 64 * PAGE, 1, 0); /* touches absent memory while dying */
    atomic_fetch_add(&cleanups, 1);
}

static void *victim(void *argument)
{
    int ignored;
    bool asynchronous = argument != NULL;
    pthread_cleanup_push(cleanup, NULL);
    if (asynchronous)
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &ignored);
    volatile uint64_t sum = 0;
    for (size_t page = 0;; page++) {
        sum += ((volatile uint64_t *)at)[page * 37 % (bytes / PAGE) * WORDS];
        if (!asynchronous)
            pthread_testcancel();
    }
    pthread_cleanup_pop(0);
    return NULL;
}

int main(void)
{
    at = map(bytes);
    fill(at, bytes, 1);
    enum { ROUNDS = 12 };
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread[2];
        PTHREAD(pthread_create(&thread[0], NULL, victim, NULL));
        PTHREAD(pthread_create(&thread[1], NULL, victim, (void *)1));
        usleep(500 + (useconds_t)round * 173);
        for (int i = 0; i < 2; i++)
            PTHREAD(pthread_cancel(thread[i]));
        for (int i = 0; i < 2; i++) {
            void *result;
            PTHREAD(pthread_join(thread[i], &result));
            CHECK(result == PTHREAD_CANCELED);
        }
    }
    CHECK(atomic_load(&cleanups) == 2 * ROUNDS);
    churn();
    verify(at, bytes, 1);
    return 0;
}
