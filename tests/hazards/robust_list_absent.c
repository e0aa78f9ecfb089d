/* A thread dies while the mutex it holds is absent: the kernel walks the
 * robust list itself, through absent memory, when the thread is gone. */
#include "hazard.h"
#include <time.h>

struct held {
    _Alignas(4096) pthread_mutex_t mutex;
};
static struct held *held;
enum { LOCKS = 16 };
static pthread_barrier_t barrier;

static void *dies_holding_many(void *argument)
{
    (void)argument;
    for (int i = 0; i < LOCKS; i++)
        PTHREAD(pthread_mutex_lock(&held[i].mutex));
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier); /* main churns: the mutexes are absent now */
    syscall(SYS_exit, 0);           /* not even the C library touches them */
    return NULL;
}

int main(void)
{
    held = map(LOCKS * sizeof *held);
    PTHREAD(pthread_barrier_init(&barrier, NULL, 2));
    pthread_mutexattr_t robust;
    PTHREAD(pthread_mutexattr_init(&robust));
    PTHREAD(pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST));
    for (int i = 0; i < LOCKS; i++)
        PTHREAD(pthread_mutex_init(&held[i].mutex, &robust));
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, dies_holding_many, NULL));
    pthread_barrier_wait(&barrier);
    churn();
    churn();
    pthread_barrier_wait(&barrier);
    PTHREAD(pthread_join(thread, NULL));
    for (int i = 0; i < LOCKS; i++) {
        struct timespec until;
        SYS(clock_gettime(CLOCK_REALTIME, &until));
        until.tv_sec += 2;
        int error = pthread_mutex_timedlock(&held[i].mutex, &until);
        CHECKF(error == EOWNERDEAD, "mutex %d: %s instead of EOWNERDEAD", i, strerror(error));
        PTHREAD(pthread_mutex_consistent(&held[i].mutex));
        PTHREAD(pthread_mutex_unlock(&held[i].mutex));
    }
    return 0;
}
