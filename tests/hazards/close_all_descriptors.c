/* A program closes every descriptor it does not know, uses their numbers for its
 * own files, and lowers its limit; memory works on, in children too. */
#include "hazard.h"
#include <sys/resource.h>

static unsigned char *at;
static const size_t bytes = 3 * QUARTER;
static void again(uint64_t *seed)
{
    churn();
    verify(at, bytes, *seed);
    fill(at, bytes, ++*seed);
}

int main(void)
{
    at = map(bytes);
    fill(at, bytes, 1);
    uint64_t seed = 1;
    again(&seed);
    for (int fd = 3; fd < 1100; fd++)
        close(fd);
    again(&seed);
    if (syscall(SYS_close_range, 3, ~0u, 0) == -1)
        CHECKF(errno == ENOSYS, "close_range: %s", strerror(errno));
    closefrom(3);
    again(&seed);
    /* The numbers are the program's now. */
    int null = (int)SYS(open("/dev/null", O_RDWR));
    for (int fd = 3; fd < 200; fd++)
        if (fd != null)
            SYS(dup2(null, fd));
    again(&seed);
    for (int fd = 3; fd < 200; fd++) {
        struct stat st;
        SYS(fstat(fd, &st));
        CHECK(S_ISCHR(st.st_mode));
    }
    unsigned char *more = map(2 * QUARTER); /* a mapping made after all that */
    fill(more, 2 * QUARTER, 77);
    again(&seed);
    verify(more, 2 * QUARTER, 77);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        closefrom(3);
        again(&seed);
        again(&seed);
        verify(more, 2 * QUARTER, 77);
        _exit(0);
    }
    wait_ok(child);
    closefrom(3);
    struct rlimit limit = {3, 3};
    SYS(setrlimit(RLIMIT_NOFILE, &limit));
    again(&seed);
    CHECK(open("/dev/null", O_RDONLY) == -1 && errno == EMFILE);
    more = map(2 * QUARTER);
    fill(more, 2 * QUARTER, 78);
    child = (pid_t)SYS(fork()); /* a child that cannot open anything */
    if (child == 0) {
        again(&seed);
        verify(more, 2 * QUARTER, 78);
        _exit(0);
    }
    wait_ok(child);
    verify(more, 2 * QUARTER, 78);
    return 0;
}
