/* The classic daemon: fork, setsid, fork again, close every descriptor, work on. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 8 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    /* The daemon tells its verdict through a file: every descriptor is closed. */
    char name[64], path[4200];
    CHECK(getcwd(path, 4096));
    sprintf(name, "/hazard-daemon-%d.tmp", (int)getpid());
    strcat(path, name);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        SYS(setsid());
        pid_t second = (pid_t)SYS(fork());
        if (second)
            _exit(0);
        SYS(chdir("/"));
        for (int fd = 0; fd < 1024; fd++)
            close(fd);
        SYS(open("/dev/null", O_RDWR));
        SYS(dup(0));
        int errors = (int)SYS(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600)); /* becomes 2 */
        CHECK(errors == 2);
        verify(at, bytes, 1);
        fill(at, bytes, 2);
        churn();
        verify(at, bytes, 2);
        write_all(errors, "done", 4);
        _exit(0);
    }
    wait_ok(child);
    verify(at, bytes, 1);
    char verdict[600] = "";
    for (int tenths = 0; tenths < 650; tenths++) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd != -1) {
            ssize_t n = read(fd, verdict, sizeof verdict - 1);
            close(fd);
            if (n > 0)
                break;
        }
        usleep(tenths < 50 ? 5000 : 100000);
    }
    unlink(path);
    CHECKF(strcmp(verdict, "done") == 0, "the daemon says: %s", *verdict ? verdict : "nothing");
    return 0;
}
