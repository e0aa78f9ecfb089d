/* The main thread locks itself into a filter that allows it little more than
 * reading, writing and ending, as sandboxes do before they touch untrusted
 * input. Faults are no system calls: memory must go on working. */
#include "filter.h"

int main(void)
{
    size_t bytes = 6 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    int fd = temp_file();
    struct sock_filter code[] = {
        NUMBER,
        ALLOW(read), ALLOW(write), ALLOW(lseek), ALLOW(exit_group), ALLOW(rt_sigreturn), ALLOW(futex),
        OTHERWISE(SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = PROGRAM(code);
    if (!set_filter(&program))
        skip("seccomp filters are not allowed here");
    CHECK(mmap(NULL, QUARTER, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EPERM);
    verify(at, bytes, 1);
    fill(at, bytes, 2);
    churn();
    verify(at, bytes, 2);
    churn();
    write_all(fd, at, bytes);
    SYS(lseek(fd, 0, SEEK_SET));
    fill(at, bytes, 3);
    churn();
    read_all(fd, at, bytes);
    churn();
    verify(at, bytes, 2);
    return 0;
}
