/* Futexes, private and shared, on words that are absent when the kernel looks at
 * them, and that are evicted and brought back while a thread sleeps on them: the
 * wake must find the sleeper. */
#include "hazard.h"
#include <linux/futex.h>
#include <time.h>

static long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *timeout,
                  uint32_t *second, uint32_t third)
{
    return syscall(SYS_futex, word, operation, value, timeout, second, third);
}

struct job {
    uint32_t *word;
    int flag;
    atomic_int woken;
};

static void *sleeper(void *argument)
{
    struct job *job = argument;
    struct timespec timeout = {.tv_sec = 15};
    while (__atomic_load_n(job->word, __ATOMIC_ACQUIRE) == 0) {
        long result = futex(job->word, FUTEX_WAIT | job->flag, 0, &timeout, NULL, 0);
        CHECKF(result == 0 || errno == EAGAIN || errno == EINTR, "futex wait: %s", strerror(errno));
    }
    atomic_store(&job->woken, 1);
    return NULL;
}

int main(void)
{
    for (int shared = 0; shared < 2; shared++) {
        int flag = shared ? 0 : FUTEX_PRIVATE_FLAG;
        for (int round = 0; round < 3; round++) {
            uint32_t *word = map(64 * KIB); /* never touched: the kernel is the first */
            struct job job = {.word = word, .flag = flag};
            pthread_t thread;
            PTHREAD(pthread_create(&thread, NULL, sleeper, &job));
            usleep(round % 2 ? 2000 : 0);
            churn();
            __atomic_store_n(word, 1, __ATOMIC_RELEASE);
            CHECK(futex(word, FUTEX_WAKE | flag, 1, NULL, NULL, 0) >= 0);
            PTHREAD(pthread_join(thread, NULL));
            CHECK(atomic_load(&job.woken));
            SYS(munmap(word, 64 * KIB));
        }
        /* Values are compared rightly on absent words. */
        uint32_t *word = map(64 * KIB), *other = map(64 * KIB);
        *word = 5;
        churn();
        CHECK(futex(word, FUTEX_WAIT | flag, 4, NULL, NULL, 0) == -1 && errno == EAGAIN);
        struct timespec *brief = map(64 * KIB);
        brief->tv_nsec = 1000000;
        churn();
        CHECK(futex(word, FUTEX_WAIT | flag, 5, brief, NULL, 0) == -1);
        CHECKF(errno == ETIMEDOUT, "futex wait with a matching value: %s", strerror(errno));
        churn();
        CHECK(futex(word, FUTEX_WAKE | flag, 1, NULL, NULL, 0) == 0);
        churn();
        CHECK(futex(word, FUTEX_CMP_REQUEUE | flag, 1, (void *)1, other, 4) == -1 && errno == EAGAIN);
        CHECK(futex(word, FUTEX_CMP_REQUEUE | flag, 1, (void *)1, other, 5) == 0);
    }
    return 0;
}
