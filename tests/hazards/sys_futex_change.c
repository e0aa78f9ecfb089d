/* Futex words that the kernel changes by itself, absent: FUTEX_WAKE_OP and the
 * priority-inheriting lock. */
#include "hazard.h"
#include <linux/futex.h>
#include <time.h>

static long futex(uint32_t *word, int operation, uint32_t value, uint32_t *second, uint32_t third)
{
    return syscall(SYS_futex, word, operation, value, (void *)1, second, third);
}

#define CHANGE(call)                                                           \
    do {                                                                       \
        errno = 0;                                                             \
        long result_ = call;                                                   \
        CHECKF(result_ == 0, "%s gives %ld: %s", #call, result_, strerror(errno)); \
    } while (0)

int main(void)
{
    for (int flag = 0; flag <= FUTEX_PRIVATE_FLAG; flag += FUTEX_PRIVATE_FLAG) {
        uint32_t *word = map(64 * KIB), *other = map(64 * KIB);
        *word = 5;
        churn();
        CHANGE(futex(word, FUTEX_WAKE_OP | flag, 1, other, FUTEX_OP(FUTEX_OP_ADD, 3, FUTEX_OP_CMP_EQ, 0)));
        CHECK(*other == 3 && *word == 5);
        churn();
        CHANGE(syscall(SYS_futex, word + 1, FUTEX_LOCK_PI | flag, 0, NULL, NULL, 0));
        churn();
        CHECK((word[1] & FUTEX_TID_MASK) == (uint32_t)syscall(SYS_gettid));
        churn();
        CHANGE(syscall(SYS_futex, word + 1, FUTEX_UNLOCK_PI | flag, 0, NULL, NULL, 0));
        CHECK(word[1] == 0);
    }
    return 0;
}
