/* Sandboxes leave the user namespace, or enter the namespaces of another process,
 * after they have used memory. The kernel allows it to processes of one thread. */
#include "hazard.h"
#include <sched.h>

static const size_t bytes = 8 * QUARTER;
static unsigned char *at;

static void leave(void) { SYS(unshare(CLONE_NEWUSER)); }
static void leave_by_number(void) { SYS(syscall(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS)); }
static void leave_nothing(void) { SYS(unshare(CLONE_VM | CLONE_SIGHAND | CLONE_THREAD)); }

static int of_another;
static void enter(void) { SYS(setns(of_another, 0)); }

static void *forever(void *argument)
{
    for (;;)
        pause();
    return argument;
}
/* With a thread of the program's own it is refused, and the program stays as it was. */
static void two_threads(void)
{
    pthread_t other;
    PTHREAD(pthread_create(&other, NULL, forever, NULL));
    CHECK(unshare(CLONE_NEWUSER) == -1 && errno == EINVAL);
    CHECK(setns(0, CLONE_NEWUSER) == -1 && errno == EINVAL);
}

static void in_child(void (*change)(void))
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        unsigned char *fresh = map(bytes);
        fill(fresh, bytes, 2);
        change();
        verify(at, bytes, 1);
        verify(fresh, bytes, 2);
        pid_t grandchild = (pid_t)SYS(fork());
        if (grandchild == 0) {
            verify(at, bytes, 1);
            fill(at, bytes, 3);
            verify(at, bytes, 3);
            _exit(0);
        }
        wait_ok(grandchild);
        churn();
        verify(at, bytes, 1);
        _exit(0);
    }
    wait_ok(child);
}

int main(void)
{
    pid_t probe = (pid_t)SYS(fork());
    if (probe == 0)
        _exit(unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 ? 0 : 1);
    int status;
    SYS(waitpid(probe, &status, 0));
    if (status != 0)
        skip("user namespaces are not allowed here");
    at = map(bytes);
    fill(at, bytes, 1);
    churn();
    in_child(two_threads);
    in_child(leave_nothing);
    in_child(leave);
    in_child(leave_by_number);
    int ready[2];
    SYS(pipe(ready));
    pid_t other = (pid_t)SYS(fork());
    if (other == 0) {
        SYS(unshare(CLONE_NEWUSER | CLONE_NEWNS));
        SYS(write(ready[1], "", 1));
        for (;;)
            pause();
    }
    char byte;
    CHECK(SYS(read(ready[0], &byte, 1)) == 1);
    const char *kinds[] = {"mnt", "user"};
    for (int i = 0; i < 2; i++) {
        if (i == 0 && geteuid() != 0)
            continue;
        char name[64];
        sprintf(name, "/proc/%d/ns/%s", (int)other, kinds[i]);
        of_another = (int)SYS(open(name, O_RDONLY));
        in_child(enter);
        SYS(close(of_another));
    }
    SYS(kill(other, SIGKILL));
    SYS(waitpid(other, &status, 0));
    verify(at, bytes, 1);
    return 0;
}
