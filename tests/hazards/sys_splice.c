/* vmsplice hands pages themselves to a pipe: what is read from it is what stood
 * there, though the pages are evicted meanwhile. splice and tee as well. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 2 * QUARTER;
    unsigned char *at = map(bytes), *in = map(bytes);
    int one[2], two[2];
    SYS(pipe(one));
    SYS(pipe(two));
    fill(at, bytes, 1);
    churn();
    for (size_t done = 0; done < bytes;) {
        struct iovec *part = map(64 * KIB);
        *part = (struct iovec){at + done, bytes - done < 40000 ? bytes - done : 40000};
        long n = SYS(vmsplice(one[1], part, 1, SPLICE_F_NONBLOCK));
        CHECK(n > 0);
        if (done % 80000 == 0)
            churn(); /* evicted while the pipe refers to them */
        if (done % 3 == 0) {
            CHECK(SYS(tee(one[0], two[1], (size_t)n, 0)) == n);
            CHECK(SYS(read(two[0], in + done, (size_t)n)) == n);
            for (long i = 0; i < n; i++)
                CHECK(in[done + (size_t)i] == pattern_byte(1, done + (size_t)i));
            memset(in + done, 0, (size_t)n);
        }
        long got = 0;
        while (got < n)
            got += SYS(read(one[0], in + done + got, (size_t)(n - got)));
        done += (size_t)n;
        SYS(munmap(part, 64 * KIB));
    }
    churn();
    verify(in, bytes, 1);

    /* A file is spliced into a pipe, the pipe read into absent memory, and the
     * other way round. */
    int fd = temp_file(), back = temp_file();
    write_all(fd, at, bytes);
    memset(in, 0, bytes);
    churn();
    off_t *offset = map(64 * KIB);
    for (size_t done = 0; done < bytes;) {
        long n = SYS(splice(fd, offset, one[1], NULL, 60000, 0));
        CHECK(n > 0);
        CHECK(SYS(read(one[0], in + done, (size_t)n)) == n);
        done += (size_t)n;
    }
    CHECK(*offset == (off_t)bytes);
    churn();
    verify(in, bytes, 1);
    for (size_t done = 0; done < bytes;) {
        size_t want = bytes - done < 50000 ? bytes - done : 50000;
        write_all(one[1], in + done, want);
        for (size_t moved = 0; moved < want;)
            moved += (size_t)SYS(splice(one[0], NULL, back, NULL, want - moved, 0));
        done += want;
    }
    *offset = 0;
    churn();
    int copy = temp_file();
    CHECK(SYS(copy_file_range(back, offset, copy, NULL, bytes, 0)) > 0);
    CHECK(SYS(pread(back, in, bytes, 0)) == (long)bytes);
    verify(in, bytes, 1);
    return 0;
}
