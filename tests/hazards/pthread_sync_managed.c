/* Mutexes, condition variables, semaphores, barriers and read-write locks that
 * stand in memory which is evicted while threads wait on them. */
#include "hazard.h"
#include <semaphore.h>

struct sync {
    _Alignas(4096) pthread_mutex_t mutex;
    _Alignas(4096) pthread_cond_t turned;
    _Alignas(4096) sem_t tokens;
    _Alignas(4096) pthread_rwlock_t lock;
    _Alignas(4096) pthread_mutex_t robust;
    _Alignas(4096) uint64_t turn;
    _Alignas(4096) uint64_t counter;
};
static struct sync *s;
enum { THREADS = 4, TURNS = 60 };

static void *player(void *argument)
{
    uint64_t id = (uint64_t)(uintptr_t)argument;
    for (uint64_t turn = id; turn < TURNS; turn += THREADS) {
        PTHREAD(pthread_mutex_lock(&s->mutex));
        while (s->turn != turn)
            PTHREAD(pthread_cond_wait(&s->turned, &s->mutex));
        s->turn++;
        PTHREAD(pthread_cond_broadcast(&s->turned));
        PTHREAD(pthread_mutex_unlock(&s->mutex));
        SYS(sem_wait(&s->tokens));
        PTHREAD(pthread_rwlock_wrlock(&s->lock));
        s->counter++;
        PTHREAD(pthread_rwlock_unlock(&s->lock));
        SYS(sem_post(&s->tokens));
    }
    return NULL;
}

static void *dies_holding(void *argument)
{
    (void)argument;
    PTHREAD(pthread_mutex_lock(&s->robust));
    return NULL; /* the kernel marks the mutex through its robust list, absent or not */
}

int main(void)
{
    s = map(64 * KIB);
    pthread_mutexattr_t robust;
    PTHREAD(pthread_mutexattr_init(&robust));
    PTHREAD(pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST));
    PTHREAD(pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED));
    PTHREAD(pthread_mutex_init(&s->mutex, NULL));
    PTHREAD(pthread_cond_init(&s->turned, NULL));
    PTHREAD(pthread_rwlock_init(&s->lock, NULL));
    PTHREAD(pthread_mutex_init(&s->robust, &robust));
    SYS(sem_init(&s->tokens, 0, 2));
    struct churner churner;
    churner_start(&churner);
    pthread_t thread[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&thread[i], NULL, player, (void *)i));
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_join(thread[i], NULL));
    CHECK(s->turn == TURNS && s->counter == TURNS);

    for (int round = 0; round < 5; round++) {
        PTHREAD(pthread_create(&thread[0], NULL, dies_holding, NULL));
        PTHREAD(pthread_join(thread[0], NULL));
        int error = pthread_mutex_lock(&s->robust);
        CHECKF(error == EOWNERDEAD, "locking the dead owner's mutex gives %s", strerror(error));
        PTHREAD(pthread_mutex_consistent(&s->robust));
        PTHREAD(pthread_mutex_unlock(&s->robust));
    }
    churner_stop(&churner);
    return 0;
}
