/* A control group that allows one process more and no thread besides: whoever is forked there
 * has all its memory, whatever it cannot have. */
#include "hazard.h"

static const char *const ROOTS[] = {"/sys/fs/cgroup/pids", "/sys/fs/cgroup"};
static char group[128];

static int opened(const char *file, int how)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", group, file);
    return open(path, how | O_CLOEXEC);
}

static void write_to(const char *file, long number)
{
    char text[24];
    int fd = (int)SYS(opened(file, O_WRONLY));
    int n = snprintf(text, sizeof text, "%ld", number);
    SYS(write(fd, text, (size_t)n));
    close(fd);
}

static long read_from(const char *file)
{
    char text[24] = {0};
    int fd = (int)SYS(opened(file, O_RDONLY));
    SYS(read(fd, text, sizeof text - 1));
    close(fd);
    return atol(text);
}

static void make_group(void)
{
    for (size_t i = 0; i < sizeof ROOTS / sizeof *ROOTS; i++) {
        snprintf(group, sizeof group, "%s/hazard-threads-%d", ROOTS[i], (int)getpid());
        if (mkdir(group, 0755) == 0) {
            int fd = opened("pids.max", O_WRONLY);
            if (fd != -1) {
                close(fd);
                return;
            }
            rmdir(group);
        }
    }
    skip("no control group for the number of processes can be made here");
}

static void must_end_well(pid_t child, const char *who)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECKF(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %#x of %s", (unsigned)status, who);
}

int main(void)
{
    size_t bytes = 8 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    make_group();
    pid_t inside = (pid_t)SYS(fork());
    if (inside == 0) {
        write_to("cgroup.procs", getpid());
        fill(at, bytes / 2, 2);
        churn();
        write_to("pids.max", read_from("pids.current") + 1);
        for (int round = 0; round < 2; round++) {
            pid_t child = (pid_t)SYS(fork());
            if (child == 0) {
                verify(at, bytes / 2, 2);
                verify_from(at + bytes / 2, bytes / 2, 1, bytes / 2 / PAGE);
                fill(at, bytes, 3);
                verify(at, bytes, 3);
                _exit(0);
            }
            must_end_well(child, "the one without threads");
        }
        verify(at, bytes / 2, 2);
        _exit(0);
    }
    must_end_well(inside, "the one inside");
    for (int i = 0; i < 1000 && rmdir(group) == -1 && errno == EBUSY; i++)
        usleep(10000);
    verify(at, bytes, 1);
    return 0;
}
