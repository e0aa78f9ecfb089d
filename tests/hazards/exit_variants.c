/* Every way for a process to end gives the status that it should, with memory
 * absent and threads in the middle of faults. */
#include "hazard.h"
#include <sys/resource.h>

static unsigned char *at;
static const size_t bytes = QUARTER;

static void *faulter(void *argument)
{
    while (!argument)
        churn();
    return NULL;
}
static void *exits(void *argument)
{
    exit((int)(intptr_t)argument);
}
static void at_exit(void)
{
    verify(at, bytes, 1); /* absent memory is touched while exiting */
}
static void quick(void)
{
    verify(at, bytes, 1);
}

static void variant(int which)
{
    pthread_t thread;
    if (which % 2)
        PTHREAD(pthread_create(&thread, NULL, faulter, NULL));
    atexit(at_exit);
    at_quick_exit(quick);
    int *volatile nowhere = (int *)0x10;
    churn();
    switch (which) {
    case 0:
        exit(11);
    case 1:
        _exit(12);
    case 2:
        quick_exit(13);
    case 3:
        syscall(SYS_exit_group, 14);
        break;
    case 4:
        PTHREAD(pthread_create(&thread, NULL, exits, (void *)15));
        pthread_join(thread, NULL);
        break;
    case 5:
        abort();
    case 6:
        raise(SIGTERM);
        break;
    case 7:
        raise(SIGKILL);
        break;
    case 8:
        *nowhere = 0;
        break;
    default:
        __builtin_trap();
    }
    _exit(99);
}

int main(void)
{
    struct rlimit no_core = {0, 0};
    SYS(setrlimit(RLIMIT_CORE, &no_core));
    at = map(bytes);
    fill(at, bytes, 1);
    for (int which = 0; which < 10; which++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0)
            variant(which);
        switch (which) {
        case 5:
            wait_signal(child, SIGABRT);
            break;
        case 6:
            wait_signal(child, SIGTERM);
            break;
        case 7:
            wait_signal(child, SIGKILL);
            break;
        case 8:
            wait_signal(child, SIGSEGV);
            break;
        case 9:
            wait_signal(child, SIGILL);
            break;
        default:
            wait_exit(child, 11 + which);
        }
    }
    return 0;
}
