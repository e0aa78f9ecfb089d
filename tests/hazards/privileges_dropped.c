/* A program that makes itself undumpable, changes its root, its namespaces and
 * its user, and forbids itself new privileges, keeps its memory. */
#include "hazard.h"
#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>

static unsigned char *at;
static const size_t bytes = 2 * QUARTER;
static uint64_t seed = 1;
static void again(void)
{
    churn();
    verify(at, bytes, seed);
    fill(at, bytes, ++seed);
    unsigned char *fresh = map(16 * PAGE);
    verify_zero(fresh, 16 * PAGE);
    fill(fresh, 16 * PAGE, 5);
    verify(fresh, 16 * PAGE, 5);
    SYS(munmap(fresh, 16 * PAGE));
}
static void again_in_child(void)
{
    again();
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        again();
        _exit(0);
    }
    wait_ok(child);
}

int main(void)
{
    at = map(bytes);
    fill(at, bytes, 1);
    SYS(prctl(PR_SET_DUMPABLE, 0));
    again_in_child();
    SYS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    again();
    if (geteuid() == 0) {
        if (unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC) == 0)
            again_in_child();
        char name[64];
        sprintf(name, "hazard-root-%d", (int)getpid());
        SYS(mkdir(name, 0755));
        if (chroot(name) == 0) {
            SYS(chdir("/"));
            CHECK(access("/proc", F_OK) == -1);
            again_in_child();
        }
        SYS(setgroups(0, NULL));
        SYS(setresgid(65534, 65534, 65534));
        SYS(setresuid(65534, 65534, 65534));
        CHECK(setuid(0) == -1);
        again_in_child();
    } else if (unshare(CLONE_NEWUSER) == 0) {
        again_in_child();
    }
    SYS(prctl(PR_SET_DUMPABLE, 0));
    again_in_child();
    return 0;
}
