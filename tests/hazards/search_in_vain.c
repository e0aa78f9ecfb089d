/* More memory is locked than a program may have, and others want the processors. Whoever touches a
 * page for which there is no room gets it soon all the same: what can be looked at meanwhile is
 * all locked. So with a child, too, which has all its memory in common with its parent.
 *
 * How long is soon? Less than it takes to give the processor away a hundred times, beside the same
 * others. */
#include "hazard.h"
#include <sched.h>
#include <sys/resource.h>
#include <time.h>

enum { FAULTS = 4, YIELDS = 8, MANY = 100 };
static const size_t locked = 6 * QUARTER;

static long now_us(void)
{
    struct timespec t;
    SYS(clock_gettime(CLOCK_MONOTONIC, &t));
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* How long giving the processor away takes. */
static long yield_us(void)
{
    long began = now_us();
    for (int i = 0; i < YIELDS; i++)
        sched_yield();
    return (now_us() - began) / YIELDS;
}

/* Locks all that, and touches some pages afterwards. */
static void lock_and_touch(unsigned char *at, const char *who)
{
    long before = yield_us(), began = now_us();
    SYS(mlock(at, locked));
    long locks = now_us() - began;
    unsigned char *fresh = map(QUARTER);
    began = now_us();
    for (int i = 0; i < FAULTS; i++) {
        fresh[(size_t)i * 12 * PAGE] = 1;
        /* Whoever has searched in vain may rest before the next search, for longer each time. */
        usleep(10000u << i);
    }
    long touches = now_us() - began;
    /* The others may have been fewer at either moment. */
    long after = yield_us(), yield = after > before ? after : before;
    /* One search that goes on for as long as there may be something takes more by itself. */
    CHECKF(locks + touches < MANY * yield || locks + touches < 1000000,
           "%s: to lock takes %ld us, to touch %ld, a yield %ld us", who, locks, touches, yield);
    SYS(munmap(fresh, QUARTER));
}

int main(void)
{
    struct rlimit limit;
    SYS(getrlimit(RLIMIT_MEMLOCK, &limit));
    if (limit.rlim_cur < locked + MIB && geteuid() != 0)
        skip("little memory may be locked here");
    int ends[2];
    SYS(pipe(ends));
    pid_t others[64];
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    count = count > 64 ? 64 : count;
    for (int i = 0; i < count; i++) {
        others[i] = (pid_t)SYS(fork());
        if (others[i] == 0) {
            /* Until the parent is gone, too. */
            SYS(close(ends[1]));
            SYS(fcntl(ends[0], F_SETFL, O_NONBLOCK));
            for (char byte; read(ends[0], &byte, 1) == -1;)
                for (volatile int work = 0; work < 1000000; work++)
                    ;
            _exit(0);
        }
    }
    SYS(close(ends[0]));
    SYS(setpriority(PRIO_PROCESS, 0, 10));
    unsigned char *at = map(locked);
    fill(at, locked, 1);
    churn();
    lock_and_touch(at, "parent");
    verify(at, locked, 1);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        SYS(close(ends[1]));
        lock_and_touch(at, "child");
        verify(at, locked, 1);
        _exit(0);
    }
    wait_ok(child);
    SYS(munlock(at, locked));
    SYS(close(ends[1]));
    for (int i = 0; i < count; i++)
        wait_ok(others[i]);
    churn();
    verify(at, locked, 1);
    return 0;
}
