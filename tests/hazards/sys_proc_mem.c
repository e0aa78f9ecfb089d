/* A program reads and writes itself through /proc/self/mem, as debuggers and
 * sandboxes do. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 4 * QUARTER;
    unsigned char *at = map(bytes), *copy = map(bytes), *fresh = map(QUARTER);
    int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    if (fd == -1)
        skip("/proc/self/mem cannot be opened");
    fill(at, bytes, 1);
    churn();
    long n = pread(fd, copy, bytes, (off_t)(uintptr_t)at);
    if (n == -1 && errno == EIO)
        known_limit("reading absent memory through /proc/self/mem gives EIO");
    CHECKF(n == (long)bytes, "read %ld bytes: %s", n, strerror(errno));
    verify(copy, bytes, 1);
    CHECK(SYS(pread(fd, copy, QUARTER, (off_t)(uintptr_t)fresh)) == (long)QUARTER);
    verify_zero(copy, QUARTER);
    fill(copy, bytes, 2);
    churn();
    CHECK(SYS(pwrite(fd, copy, bytes, (off_t)(uintptr_t)at)) == (long)bytes);
    churn();
    verify(at, bytes, 2);
    /* It may write what we may not: a read-only page changes under us. */
    SYS(mprotect(at, QUARTER, PROT_READ));
    churn();
    fill(copy, PAGE, 3);
    CHECK(SYS(pwrite(fd, copy, PAGE, (off_t)(uintptr_t)at + 32 * (off_t)PAGE)) == (long)PAGE);
    verify(at, 32 * PAGE, 2);
    verify(at + 32 * PAGE, PAGE, 3);
    churn();
    verify(at + 32 * PAGE, PAGE, 3);
    return 0;
}
