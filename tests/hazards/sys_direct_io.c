/* O_DIRECT: the device writes to and reads from the frames of our pages while
 * another thread evicts everything. A page that is evicted between pin and
 * completion would lose what the device wrote. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 4 * QUARTER, block = 64 * KIB;
    int fd = temp_file_with(O_DIRECT);
    unsigned char *out = map(bytes), *in = map(bytes);
    fill(out, bytes, 1);
    churn();
    for (size_t at = 0; at < bytes; at += block) {
        long n = pwrite(fd, out + at, block, (off_t)at);
        if (n == -1 && errno == EINVAL)
            skip("this filesystem refuses O_DIRECT");
        CHECKF(n == (long)block, "pwrite gives %ld: %s", n, strerror(errno));
    }
    struct churner churner;
    churner_start(&churner);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < bytes / block; i++) {
            size_t at = i * 7 % (bytes / block) * block;
            CHECK(SYS(pread(fd, in + at, block, (off_t)at)) == (long)block);
            verify_from(in + at, block, 1 + (uint64_t)round, at / PAGE);
        }
        verify(in, bytes, 1 + (uint64_t)round);
        fill(out, bytes, 2 + (uint64_t)round);
        for (size_t at = 0; at < bytes; at += block)
            CHECK(SYS(pwrite(fd, out + at, block, (off_t)at)) == (long)block);
        /* Single pages, odd order. */
        for (size_t i = 0; i < 32; i++) {
            size_t page = mix(i) % (bytes / PAGE);
            CHECK(SYS(pread(fd, in + page * PAGE, PAGE, (off_t)(page * PAGE))) == (long)PAGE);
            verify_from(in + page * PAGE, PAGE, 2 + (uint64_t)round, page);
        }
    }
    churner_stop(&churner);
    return 0;
}
