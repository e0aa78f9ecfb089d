/* Another process reads and writes our memory with process_vm_readv and
 * process_vm_writev: what is absent for us must be there for it. */
#include "hazard.h"
#include <sys/prctl.h>

static const size_t bytes = 4 * QUARTER;

/* Retries after EFAULT would hide the hazard: one call each. */
static void other(pid_t target, unsigned char *remote, unsigned char *fresh)
{
    unsigned char *local = map(bytes);
    struct iovec to = {local, bytes}, from = {remote, bytes};
    long n = process_vm_readv(target, &to, 1, &from, 1, 0);
    if (n == -1 && errno == EPERM)
        _exit(77);
    CHECKF(n == (long)bytes, "process_vm_readv gives %ld: %s", n, strerror(errno));
    verify(local, bytes, 1);
    from.iov_base = fresh;
    to.iov_len = from.iov_len = QUARTER;
    n = process_vm_readv(target, &to, 1, &from, 1, 0);
    CHECKF(n == (long)QUARTER, "process_vm_readv of untouched memory gives %ld: %s", n, strerror(errno));
    verify_zero(local, QUARTER);
    fill(local, bytes, 2);
    to.iov_len = from.iov_len = bytes;
    from.iov_base = remote;
    n = process_vm_writev(target, &to, 1, &from, 1, 0);
    CHECKF(n == (long)bytes, "process_vm_writev gives %ld: %s", n, strerror(errno));
    _exit(0);
}

int main(void)
{
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    unsigned char *at = map(bytes), *fresh = map(QUARTER);
    fill(at, bytes, 1);
    int go[2];
    SYS(pipe(go));
    pid_t self = getpid(), child = (pid_t)SYS(fork());
    if (child == 0) {
        char byte;
        read_all(go[0], &byte, 1);
        other(self, at, fresh);
    }
    churn();
    churn();
    write_all(go[1], "x", 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip("process_vm_readv is not permitted here");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    churn();
    verify(at, bytes, 2);

    /* And on ourselves, from absent to untouched memory. */
    unsigned char *copy = map(bytes);
    struct iovec to = {copy, bytes}, from = {at, bytes};
    churn();
    CHECK(SYS(process_vm_readv(self, &to, 1, &from, 1, 0)) == (long)bytes);
    verify(copy, bytes, 2);
    return 0;
}
