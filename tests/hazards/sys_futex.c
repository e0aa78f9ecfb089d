/* Futexes, private and shared, on words that are absent when the kernel looks at
 * them, and that are evicted and brought back while a thread sleeps on them: the
 * wake must find the sleeper. */
#include "hazard.h"
#include <linux/futex.h>
#include <sched.h>
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

static int churns_and_ends(void *argument)
{
    (void)argument;
    churn();
    churn();
    return 0;
}

int main(void)
{
    for (int shared = 0; shared < 2; shared++) {
        int flag = shared ? 0 : FUTEX_PRIVATE_FLAG;
        for (int round = 0; round < 6; round++) {
            uint32_t *word = map(64 * KIB); /* never touched: the kernel is the first */
            struct job job = {.word = word, .flag = flag};
            pthread_t thread;
            PTHREAD(pthread_create(&thread, NULL, sleeper, &job));
            usleep(round % 2 ? 2000 : 0);
            churn();
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
        churn();
        CHECK(futex(word, FUTEX_WAKE_OP | flag, 1, (void *)1, other,
                    FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_EQ, 0)) == 0);
        CHECK(*other == 3 && *word == 5);
        churn();
        CHECK(futex(word + 1, FUTEX_LOCK_PI | flag, 0, NULL, NULL, 0) == 0);
        churn();
        CHECK((word[1] & FUTEX_TID_MASK) == (uint32_t)syscall(SYS_gettid));
        churn();
        CHECK(futex(word + 1, FUTEX_UNLOCK_PI | flag, 0, NULL, NULL, 0) == 0);
        CHECK(word[1] == 0);
    }
    /* The word that the kernel itself clears, and wakes, when a thread has ended. */
    static char stack[64 * KIB] __attribute__((aligned(64)));
    uint32_t *ended = map(64 * KIB);
    for (uint32_t round = 1; round < 4; round++) {
        *ended = round;
        pid_t child = (pid_t)SYS(clone(churns_and_ends, stack + sizeof stack,
                                       CLONE_VM | CLONE_CHILD_CLEARTID | SIGCHLD, NULL, NULL, NULL, ended));
        struct timespec timeout = {.tv_sec = 15};
        while (__atomic_load_n(ended, __ATOMIC_ACQUIRE) != 0) {
            CHECKF(futex(ended, FUTEX_WAIT, round, &timeout, NULL, 0) == 0 || errno == EAGAIN,
                   "waiting for the end of a thread: %s", strerror(errno));
        }
        wait_ok(child);
    }
    return 0;
}
