/* A parent is killed at any moment while it makes children. A child that had
 * begun to run by then either is right or dies loudly; never is it wrong. */
#include "hazard.h"

#include <sys/prctl.h>

/* What Terrace says when it cannot give a child its memory: the program must
 * not go on with zeros instead. */
static bool is_loud(int status)
{
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

int main(void)
{
    /* Grandchildren become ours when their parent is killed. */
    SYS(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    uint64_t random = (uint64_t)getpid();
    for (int round = 0; round < 8; round++) {
        pid_t parent = (pid_t)SYS(fork());
        if (parent == 0) {
            /* What a child says before it aborts is expected here. */
            int null = (int)SYS(open("/dev/null", O_WRONLY));
            SYS(dup2(null, 2));
            size_t bytes = 3 * QUARTER;
            unsigned char *at = map(bytes);
            fill(at, bytes, 7);
            churn();
            for (int i = 0; i < 20; i++) {
                pid_t child = (pid_t)SYS(fork());
                if (child == 0) {
                    verify(at, bytes, 7);
                    _exit(0);
                }
                SYS(waitpid(child, NULL, 0));
            }
            _exit(0);
        }
        random = mix(random);
        struct timespec wait = { 0, (long)(random % 60000000) };
        nanosleep(&wait, NULL);
        SYS(kill(parent, SIGKILL));
        int status;
        for (pid_t ended; (ended = waitpid(-1, &status, 0)) > 0;)
            CHECKF(ended == parent || is_loud(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0),
                   "an orphan ended with status %x", (unsigned)status);
    }
    /* Our own memory, managed and right to the end. */
    size_t bytes = 4 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 9);
    churn();
    verify(at, bytes, 9);
    return 0;
}
