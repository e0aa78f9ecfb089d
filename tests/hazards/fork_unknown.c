/* Children of forks that are not the C library's fork (_Fork, and the system call), which fork, and their
 * children, which map memory, allocate, mark and fork in turn. */
#include "hazard.h"

static const size_t BYTES = 4ul << 20;

static void fork_by_library(const unsigned char *at)
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(at, BYTES, 1);
        _exit(0);
    }
    wait_ok(child);
}

static void work(unsigned char *at, int what)
{
    void *memory;
    switch (what) {
    case 0:
        memory = map(BYTES);
        fill(memory, BYTES, 2);
        churn();
        verify(memory, BYTES, 2);
        SYS(munmap(memory, BYTES));
        break;
    case 1:
        CHECK((memory = malloc(BYTES)));
        fill(memory, BYTES, 3);
        free(memory);
        break;
    case 2:
        SYS(madvise(at, PAGE, MADV_WIPEONFORK));
        SYS(madvise(at, PAGE, MADV_KEEPONFORK));
        break;
    default:
        memory = mremap(at, BYTES, 2 * BYTES, MREMAP_MAYMOVE);
        CHECK(memory != MAP_FAILED);
        at = memory;
    }
    verify(at, BYTES, 1);
    fork_by_library(at);
}

int main(void)
{
    unsigned char *at = map(BYTES);
    fill(at, BYTES, 1);
    for (int what = 0; what < 4; what++) {
        for (int how = 0; how < 2; how++) {
            churn();
            pid_t child = (pid_t)SYS(how ? syscall(SYS_fork) : _Fork());
            if (child == 0) {
                pid_t next = (pid_t)SYS(fork());
                if (next == 0) {
                    work(at, what);
                    _exit(0);
                }
                wait_ok(next);
                _exit(0);
            }
            wait_ok(child);
        }
    }
    verify(at, BYTES, 1);
    return 0;
}
