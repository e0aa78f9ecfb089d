/* readv, writev, preadv, pwritev, preadv2, pwritev2: data and the vectors
 * themselves are absent. */
#include "hazard.h"

enum { PARTS = 64 };

int main(void)
{
    size_t bytes = 4 * QUARTER, total = 0;
    int fd = temp_file();
    unsigned char *out = map(bytes), *in = map(bytes);
    struct iovec *from = map(64 * KIB), *to = map(64 * KIB);
    fill(out, bytes, 1);
    for (int i = 0; i < PARTS; i++) {
        size_t at = (size_t)i * (bytes / PARTS), length = 1 + mix((uint64_t)i) % (bytes / PARTS - 1);
        from[i] = (struct iovec){out + at, length};
        to[i] = (struct iovec){in + at, length};
        total += length;
    }
    churn();
    CHECK(SYS(writev(fd, from, PARTS)) == (long)total);
    SYS(lseek(fd, 0, SEEK_SET));
    churn();
    CHECK(SYS(readv(fd, to, PARTS)) == (long)total);
    for (int round = 0; round < 2; round++) {
        churn();
        for (int i = 0; i < PARTS; i++)
            for (size_t j = 0; j < to[i].iov_len; j += j % PAGE ? 61 : 1) {
                size_t at = (size_t)((unsigned char *)to[i].iov_base - in) + j;
                CHECKF(in[at] == pattern_byte(1, at), "round %d part %d byte %zu", round, i, j);
            }
        memset(in, 0, bytes);
        churn();
        if (round == 0) {
            CHECK(SYS(pwritev(fd, from, PARTS, 0)) == (long)total);
            churn();
            CHECK(SYS(preadv(fd, to, PARTS, 0)) == (long)total);
        } else {
            CHECK(SYS(pwritev2(fd, from, PARTS, 0, 0)) == (long)total);
            churn();
            CHECK(SYS(preadv2(fd, to, PARTS, 0, 0)) == (long)total);
        }
    }
    /* Untouched memory as target, with the part between the pieces left zero. */
    unsigned char *fresh = map(4 * QUARTER);
    struct iovec sparse[4];
    for (int i = 0; i < 4; i++)
        sparse[i] = (struct iovec){fresh + (size_t)i * QUARTER + 100, 5000};
    CHECK(SYS(preadv(fd, sparse, 4, 0)) == 20000);
    churn();
    verify_zero(fresh + 2 * PAGE, QUARTER - 2 * PAGE);
    for (int i = 0; i < 100; i++)
        CHECK(fresh[i] == 0);
    return 0;
}
