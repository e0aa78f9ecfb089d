/* read, write, pread and pwrite between a file and memory that is absent or was
 * never touched: never EFAULT, never a short count, never other content. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 5 * QUARTER;
    int fd = temp_file();
    unsigned char *out = map(bytes), *in = map(bytes);
    fill(out, bytes, 1);
    churn();
    write_all(fd, out, bytes);
    SYS(lseek(fd, 0, SEEK_SET));
    read_all(fd, in, bytes); /* into memory that was never touched */
    verify(in, bytes, 1);
    memset(in, 0xee, bytes);
    churn();
    CHECK(SYS(pread(fd, in, bytes, 0)) == (long)bytes); /* into absent memory */
    churn();
    verify(in, bytes, 1);

    /* Odd places and lengths; what lies around the buffer stays. */
    for (size_t i = 0; i < 20; i++) {
        size_t at = mix(i) % (bytes - 40000), length = 1 + mix(i + 1000) % 39000;
        unsigned char before = in[at ? at - 1 : 0], after = in[at + length];
        if (i % 10 == 0)
            churn();
        CHECK(SYS(pread(fd, in + at, length, (off_t)at)) == (long)length);
        CHECK(in[at ? at - 1 : 0] == before && in[at + length] == after);
        CHECK(SYS(pwrite(fd, out + at, length, (off_t)at)) == (long)length);
    }
    churn();
    verify(in, bytes, 1);
    churn();
    CHECK(SYS(pread(fd, in, bytes, 0)) == (long)bytes);
    verify(in, bytes, 1);

    /* Writing zeros that were never touched, and reading /dev/zero. */
    unsigned char *zeros = map(2 * QUARTER);
    CHECK(SYS(pwrite(fd, zeros, 2 * QUARTER, 0)) == 2 * (long)QUARTER);
    CHECK(SYS(pread(fd, in, 2 * QUARTER, 0)) == 2 * (long)QUARTER);
    verify_zero(in, 2 * QUARTER);
    int zero = (int)SYS(open("/dev/zero", O_RDONLY | O_CLOEXEC));
    churn();
    read_all(zero, in, bytes);
    verify_zero(in, bytes);

    /* The bare system calls, and what must fail still fails. */
    churn();
    CHECK(SYS(syscall(SYS_pread64, fd, out, bytes, 0L)) == (long)bytes);
    churn();
    verify_zero(out, 2 * QUARTER);
    verify_from(out + 2 * QUARTER, bytes - 2 * QUARTER, 1, 2 * QUARTER / PAGE);
    churn();
    CHECK(read(-1, out, bytes) == -1 && errno == EBADF);
    void *volatile nowhere = (void *)8;
    CHECK(read(zero, nowhere, 100) == -1 && errno == EFAULT);
    SYS(munmap(out + bytes / 2, bytes / 2));
    long n = pwrite(fd, out, bytes, 0);
    CHECKF(n == (long)bytes / 2 || (n == -1 && errno == EFAULT), "pwrite into a hole: %ld", n);
    CHECK(pwrite(fd, out + bytes / 2, PAGE, 0) == -1 && errno == EFAULT);
    return 0;
}
