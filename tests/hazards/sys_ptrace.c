/* A debugger reads and writes the memory of a stopped program whose pages are
 * absent: PTRACE_PEEKDATA, PTRACE_POKEDATA and /proc/PID/mem. The stopped
 * program cannot help: not one of its threads runs. */
#include "hazard.h"
#include <sys/prctl.h>
#include <sys/ptrace.h>

static const size_t bytes = 2 * QUARTER;

int main(void)
{
    unsigned char *at = map(bytes);
    int ready[2];
    SYS(pipe(ready));
    fill(at, bytes, 1);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        fill(at, bytes, 2);
        churn();
        churn();
        write_all(ready[1], "x", 1);
        volatile uint64_t *flag = (uint64_t *)(at + 3 * PAGE + 16);
        uint64_t was = pattern(2, 3, 2);
        while (*flag == was)
            usleep(500);
        CHECK(*flag == 0x1234567890abcdef);
        verify(at, 3 * PAGE, 2);
        verify_from(at + 4 * PAGE, bytes - 4 * PAGE, 2, 4);
        _exit(0);
    }
    char byte;
    read_all(ready[0], &byte, 1);
    if (ptrace(PTRACE_ATTACH, child, NULL, NULL) == -1) {
        kill(child, SIGKILL);
        CHECKF(errno == EPERM, "PTRACE_ATTACH: %s", strerror(errno));
        skip("ptrace is not permitted here");
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    for (size_t page = 0; page < bytes / PAGE; page += 5) {
        errno = 0;
        long got = ptrace(PTRACE_PEEKDATA, child, at + page * PAGE + 8, NULL);
        if (errno == EIO) {
            kill(child, SIGKILL);
            known_limit("a debugger that reads absent memory of a stopped program gets EIO");
        }
        CHECKF(errno == 0, "PTRACE_PEEKDATA of page %zu: %s", page, strerror(errno));
        CHECKF((uint64_t)got == pattern(2, page, 1), "page %zu: %#lx, expected %#llx", page, got,
               (unsigned long long)pattern(2, page, 1));
    }
    char path[64];
    sprintf(path, "/proc/%d/mem", (int)child);
    int fd = (int)SYS(open(path, O_RDWR | O_CLOEXEC));
    unsigned char *copy = map(bytes);
    CHECK(SYS(pread(fd, copy, bytes, (off_t)(uintptr_t)at)) == (long)bytes);
    verify(copy, bytes, 2);
    errno = 0;
    CHECKF(ptrace(PTRACE_POKEDATA, child, at + 3 * PAGE + 16, (void *)0x1234567890abcdef) == 0,
           "PTRACE_POKEDATA: %s", strerror(errno));
    CHECK(ptrace(PTRACE_DETACH, child, NULL, NULL) == 0);
    wait_ok(child);
    verify(at, bytes, 1);
    return 0;
}
