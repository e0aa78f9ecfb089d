/* One system call over more memory than the whole budget: the pages it has
 * already used are evicted while it needs the next ones. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 24 * QUARTER;
    int fd = (int)SYS(memfd_create("hazard", MFD_CLOEXEC));
    unsigned char *at = map(bytes);
    for (size_t page = 0; page < bytes / PAGE; page += 3)
        fill_from(at + page * PAGE, PAGE, 1, page);
    CHECK(SYS(write(fd, at, bytes)) == (long)bytes);
    unsigned char *in = map(bytes);
    CHECK(SYS(pread(fd, in, bytes, 0)) == (long)bytes);
    for (size_t page = 0; page < bytes / PAGE; page++)
        if (page % 3 == 0)
            verify_from(in + page * PAGE, PAGE, 1, page);
        else
            verify_zero(in + page * PAGE, PAGE);
    return 0;
}
