/* vfork: the child borrows the parent's memory, touches absent parts of it,
 * and executes with arguments from it. */
#include "hazard.h"

static volatile int seen;

int main(int argc, char **argv)
{
    if (argc > 1)
        return strcmp(argv[1], "argument in absent memory") == 0 ? 0 : 3;
    size_t bytes = 6 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    char *path = map(64 * KIB);
    CHECK(SYS(readlink("/proc/self/exe", path, 4096)) < 4096);
    char **arguments = map(64 * KIB);
    arguments[0] = path;
    arguments[1] = strcpy(map(64 * KIB), "argument in absent memory");
    for (int round = 0; round < 3; round++) {
        churn();
        pid_t child = vfork();
        if (child == 0) {
            for (size_t page = 0; page < bytes / PAGE; page += 16)
                if (((volatile uint64_t *)at)[page * WORDS + 3] != pattern(1, page, 3))
                    _exit(9);
            seen = round + 1;
            execv(path, arguments);
            _exit(8);
        }
        CHECKF(child > 0, "vfork: %s", strerror(errno));
        CHECK(seen == round + 1);
        wait_ok(child);
    }
    /* A vfork child that only exits, and one whose exec fails. */
    churn();
    pid_t child = vfork();
    if (child == 0)
        _exit(5);
    wait_exit(child, 5);
    child = vfork();
    if (child == 0) {
        execl("/nonexistent/program", "x", (char *)NULL);
        _exit(errno == ENOENT ? 6 : 7);
    }
    wait_exit(child, 6);
    verify(at, bytes, 1);
    return 0;
}
