/* Shared anonymous memory stays shared with children, and private file mappings
 * stay what they are: Terrace must leave both alone. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 4 * QUARTER;
    unsigned char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    unsigned char *own = map(bytes);
    fill(shared, bytes, 1);
    fill(own, bytes, 2);
    churn();
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(shared, bytes, 1);
        fill(shared, bytes, 3);
        fill(own, bytes, 4);
        churn();
        _exit(0);
    }
    wait_ok(child);
    verify(shared, bytes, 3); /* the child's */
    verify(own, bytes, 2);    /* not the child's */
    unsigned char *bigger = mremap(shared, bytes, 2 * bytes, MREMAP_MAYMOVE);
    CHECK(bigger != MAP_FAILED);
    verify(bigger, bytes, 3);
    int fd = (int)SYS(memfd_create("hazard", MFD_CLOEXEC));
    SYS(ftruncate(fd, (off_t)bytes));
    unsigned char *one = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    unsigned char *two = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(one != MAP_FAILED && two != MAP_FAILED);
    fill(one, bytes, 5);
    churn();
    verify(two, bytes, 5);
    return 0;
}
