/* A handler that runs with every signal blocked, and a program that blocks every
 * signal itself, touch absent memory: a fault is not a signal to the program. */
#include "hazard.h"

static unsigned char *at;
static const size_t bytes = 4 * QUARTER;
static volatile int handled;

static void on_signal(int signal)
{
    (void)signal;
    verify(at, bytes, 1);
    fill_from(at, 64 * PAGE, 1, 0);
    handled++;
}

static void *blocked_thread(void *argument)
{
    (void)argument;
    sigset_t all;
    sigfillset(&all);
    PTHREAD(pthread_sigmask(SIG_SETMASK, &all, NULL));
    churn();
    verify(at, bytes, 1);
    return NULL;
}

int main(void)
{
    at = map(bytes);
    fill(at, bytes, 1);
    struct sigaction action = {.sa_handler = on_signal};
    sigfillset(&action.sa_mask);
    SYS(sigaction(SIGUSR1, &action, NULL));
    for (int round = 1; round <= 2; round++) {
        churn();
        CHECK(raise(SIGUSR1) == 0 && handled == round);
    }
    sigset_t all, none, now;
    sigfillset(&all);
    sigemptyset(&none);
    SYS(sigprocmask(SIG_SETMASK, &all, NULL));
    churn();
    verify(at, bytes, 1);
    /* The mask is the program's: the bare system call shows what it set. */
    uint64_t mask = 0;
    SYS(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, 8));
    CHECKF((mask | 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1) | 3ull << 31) == ~0ull,
           "the signal mask became %#llx", (unsigned long long)mask);
    SYS(sigprocmask(SIG_SETMASK, &none, &now));
    CHECK(sigismember(&now, SIGUSR1) && sigismember(&now, SIGSEGV) && sigismember(&now, SIGBUS));
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, blocked_thread, NULL));
    PTHREAD(pthread_join(thread, NULL));
    /* A child of a process with everything blocked. */
    SYS(sigprocmask(SIG_SETMASK, &all, NULL));
    churn();
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(at, bytes, 1);
        churn();
        verify(at, bytes, 1);
        _exit(0);
    }
    wait_ok(child);
    return 0;
}
