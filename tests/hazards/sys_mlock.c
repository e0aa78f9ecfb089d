/* mlock, mlock2, munlock, mlockall: they succeed where plain Linux lets them,
 * locked memory is there, and content is right before, during and after. */
#include "hazard.h"
#include <sys/resource.h>

int main(void)
{
    struct rlimit limit;
    SYS(getrlimit(RLIMIT_MEMLOCK, &limit));
    size_t room = limit.rlim_cur < 4 * QUARTER && geteuid() != 0 ? limit.rlim_cur / 2 / PAGE * PAGE : 2 * QUARTER;
    if (room < 64 * KIB)
        skip("almost no memory may be locked here");
    size_t bytes = 4 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    SYS(mlock(at, room));
    churn();
    verify(at, bytes, 1);
    fill(at, room, 1);
    churn();
    verify(at, bytes, 1);
    SYS(munlock(at, room));
    churn();
    verify(at, bytes, 1);
    SYS(mlock2(at, room, MLOCK_ONFAULT));
    churn();
    verify(at, bytes, 1);
    SYS(munlock(at, room));
    /* Untouched memory. */
    unsigned char *fresh = map(room);
    SYS(mlock(fresh, room));
    verify_zero(fresh, room);
    fill(fresh, room, 2);
    churn();
    verify(fresh, room, 2);
    SYS(munmap(fresh, room));
    /* Part of it, then unmap, then again: no lock stays behind. */
    SYS(mlock(at + PAGE, 16 * PAGE));
    SYS(munmap(at, 8 * PAGE));
    churn();
    verify_from(at + 8 * PAGE, bytes - 8 * PAGE, 1, 8);
    SYS(munlock(at + 8 * PAGE, 64 * PAGE));
    CHECK(mlock(at, 16 * PAGE) == -1 && errno == ENOMEM);
    /* Everything, and everything to come. */
    if (mlockall(MCL_CURRENT | MCL_FUTURE) == -1) {
        CHECKF(errno == ENOMEM || errno == EPERM, "mlockall: %s", strerror(errno));
        return 0;
    }
    verify_from(at + 8 * PAGE, bytes - 8 * PAGE, 1, 8);
    unsigned char *later = map(QUARTER);
    fill(later, QUARTER, 3);
    churn();
    verify(later, QUARTER, 3);
    SYS(munlockall());
    churn();
    verify(later, QUARTER, 3);
    verify_from(at + 8 * PAGE, bytes - 8 * PAGE, 1, 8);
    return 0;
}
