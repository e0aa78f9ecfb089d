/* Memory that is locked after it has left is there when the call returns (mlock, mlockall, by name and by
 * number), and stays until it is unlocked. What is locked when it is touched stays from then on. What is locked
 * without access is there once it may be written. */
#include "hazard.h"
#include <sys/resource.h>

#define BYTES (6 * QUARTER)

static unsigned char *at;

static void verify_present(size_t bytes, const char *what)
{
    size_t present = present_pages(at, bytes);
    CHECKF(present == bytes / PAGE, "%s: %zu of %zu pages are present", what, present, bytes / PAGE);
}

/* Locked from the first page on. */
static void stays(size_t bytes, const char *what)
{
    verify_present(bytes, what);
    churn();
    verify_present(bytes, what);
    verify(at, BYTES, 1);
    churn();
    verify_present(bytes, what);
}

/* Before anything is locked when it is touched. */
static void becomes_writable(size_t bytes, bool by_number)
{
    int access = PROT_READ | PROT_WRITE;
    unsigned char *fresh = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(fresh != MAP_FAILED);
    CHECK((by_number ? syscall(SYS_mlock, fresh, bytes) : mlock(fresh, bytes)) == -1 && errno == ENOMEM);
    churn();
    SYS(by_number ? syscall(SYS_mprotect, fresh, bytes, access) : mprotect(fresh, bytes, access));
    size_t present = present_pages(fresh, bytes);
    CHECKF(present == bytes / PAGE, "mprotect: %zu of %zu pages are present", present, bytes / PAGE);
    fill(fresh, bytes, 2);
    churn();
    verify(fresh, bytes, 2);
    present = present_pages(fresh, bytes);
    CHECKF(present == bytes / PAGE, "later: %zu of %zu pages are present", present, bytes / PAGE);
    SYS(munmap(fresh, bytes));
}

static void is_locked(size_t bytes, bool by_number)
{
    churn();
    SYS(by_number ? syscall(SYS_mlock, at, bytes) : mlock(at, bytes));
    stays(bytes, "mlock");
    SYS(by_number ? syscall(SYS_munlock, at, bytes) : munlock(at, bytes));
    churn();
    verify(at, BYTES, 1);
    churn();
    SYS(by_number ? syscall(SYS_mlock2, at, bytes, 0) : mlock2(at, bytes, 0));
    stays(bytes, "mlock2");
    SYS(munlock(at, bytes));
    churn();
    SYS(by_number ? syscall(SYS_mlock2, at, bytes, MLOCK_ONFAULT) : mlock2(at, bytes, MLOCK_ONFAULT));
    verify(at, BYTES, 1);
    stays(bytes, "MLOCK_ONFAULT");
    SYS(munlock(at, bytes));
}

static bool all_is_locked(bool by_number)
{
    churn();
    if ((by_number ? syscall(SYS_mlockall, MCL_CURRENT) : mlockall(MCL_CURRENT)) == -1) {
        CHECKF(errno == ENOMEM || errno == EPERM, "mlockall: %s", strerror(errno));
        return false;
    }
    stays(BYTES, "mlockall");
    SYS(by_number ? syscall(SYS_munlockall) : munlockall());
    churn();
    verify(at, BYTES, 1);
    return true;
}

/* What is mapped later is locked, too. Before there was any memory. */
static void later(void)
{
    if (mlockall(MCL_CURRENT | MCL_FUTURE) == -1)
        _exit(0);
    at = map(BYTES);
    fill(at, BYTES, 1);
    stays(BYTES, "MCL_FUTURE");
    _exit(0);
}

int main(void)
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0)
        later();
    wait_ok(child);
    struct rlimit limit;
    SYS(getrlimit(RLIMIT_MEMLOCK, &limit));
    size_t room = limit.rlim_cur < 2 * BYTES && geteuid() != 0 ? limit.rlim_cur / 2 / PAGE * PAGE : 2 * QUARTER;
    if (room < 64 * KIB)
        skip("almost no memory may be locked here");
    at = map(BYTES);
    fill(at, BYTES, 1);
    for (int by_number = 0; by_number < 2; by_number++)
        becomes_writable(room, by_number);
    for (int by_number = 0; by_number < 2; by_number++) {
        is_locked(room, by_number);
        if (!all_is_locked(by_number))
            break;
    }
    return 0;
}
