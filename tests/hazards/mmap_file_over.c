/* A file is mapped over anonymous memory, shared and private, and the file's
 * pages must be the ones that are seen; then anonymous memory over the file. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 4 * QUARTER, part = QUARTER;
    int fd = temp_file();
    unsigned char *content = map(part);
    fill(content, part, 7);
    write_all(fd, content, part);
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    CHECK(mmap(at + part, part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at + part);
    CHECK(mmap(at + 2 * part, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0)
          == at + 2 * part);
    verify(at, part, 1);
    verify(at + part, part, 7);
    verify(at + 2 * part, part, 7);
    verify_from(at + 3 * part, part, 1, 3 * part / PAGE);
    fill(at + 2 * part, part, 9); /* private: the file does not change */
    churn();
    verify(at + part, part, 7);
    verify(at + 2 * part, part, 9);
    fill(at + part, part, 8); /* shared: it does */
    SYS(msync(at + part, part, MS_SYNC));
    churn();
    CHECK(SYS(pread(fd, content, part, 0)) == (long)part);
    verify(content, part, 8);
    CHECK(mmap(at + part, 2 * part, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + part);
    verify_zero(at + part, 2 * part);
    fill(at + part, 2 * part, 3);
    churn();
    verify(at + part, 2 * part, 3);
    verify(at, part, 1);
    return 0;
}
