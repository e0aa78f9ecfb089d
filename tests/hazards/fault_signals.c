/* The program's own handlers for SIGSEGV and SIGBUS keep working: unmapped
 * addresses, a null pointer, a file that became shorter; the actions it reads
 * back are the ones it set; and without a handler such a fault kills. */
#include "hazard.h"
#include <setjmp.h>
#include <sys/resource.h>

static sigjmp_buf out;
static volatile int got_signal, got_code;
static void *volatile got_address;
static void on_fault(int signal, siginfo_t *info, void *context)
{
    CHECK(context);
    got_signal = signal;
    got_code = info->si_code;
    got_address = info->si_addr;
    siglongjmp(out, 1);
}
static void other(int signal)
{
    (void)signal;
}

static void touch(void *at, int signal, int code)
{
    got_signal = 0;
    if (sigsetjmp(out, 1) == 0) {
        *(volatile char *)at;
        FAIL("reading %p did not fault", at);
    }
    CHECKF(got_signal == signal, "signal %d instead of %d", got_signal, signal);
    CHECKF(got_code == code, "si_code %d instead of %d", got_code, code);
    CHECKF(got_address == at, "si_addr %p instead of %p", got_address, at);
}

int main(void)
{
    size_t bytes = 6 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    static const int signals[] = {SIGSEGV, SIGBUS};
    for (int i = 0; i < 2; i++) {
        struct sigaction old, action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
        SYS(sigaction(signals[i], NULL, &old));
        CHECKF(old.sa_handler == SIG_DFL, "signal %d does not start as the default", signals[i]);
        SYS(sigaction(signals[i], &action, &old));
        CHECK(old.sa_handler == SIG_DFL);
        SYS(sigaction(signals[i], NULL, &old));
        CHECK(old.sa_sigaction == on_fault && old.sa_flags & SA_SIGINFO);
        CHECK(signal(signals[i], other) != SIG_ERR);
        SYS(sigaction(signals[i], NULL, &old));
        CHECK(old.sa_handler == other);
        SYS(sigaction(signals[i], &action, NULL));
    }
    touch((void *)0x40, SIGSEGV, SEGV_MAPERR);
    unsigned char *gone = map(QUARTER);
    fill(gone, QUARTER, 2);
    churn();
    SYS(munmap(gone, QUARTER));
    touch(gone + 5 * PAGE + 3, SIGSEGV, SEGV_MAPERR);
    int fd = temp_file();
    SYS(ftruncate(fd, 4 * PAGE));
    unsigned char *file = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(file != MAP_FAILED);
    file[3 * PAGE] = 1;
    SYS(ftruncate(fd, PAGE));
    touch(file + 3 * PAGE + 1, SIGBUS, BUS_ADRERR);
    verify(at, bytes, 1);

    /* raise() reaches the handler like any signal. */
    for (int i = 0; i < 2; i++) {
        CHECK(signal(signals[i], other) != SIG_ERR);
        CHECK(raise(signals[i]) == 0);
    }
    /* Blocking them does not stop ordinary faults from being served. */
    sigset_t both;
    sigemptyset(&both);
    sigaddset(&both, SIGSEGV);
    sigaddset(&both, SIGBUS);
    churn();
    SYS(sigprocmask(SIG_BLOCK, &both, NULL));
    verify(at, bytes, 1);
    SYS(sigprocmask(SIG_UNBLOCK, &both, NULL));
    /* Ignoring them neither. */
    CHECK(signal(SIGSEGV, SIG_IGN) != SIG_ERR && signal(SIGBUS, SIG_IGN) != SIG_ERR);
    churn();
    verify(at, bytes, 1);

    struct rlimit no_core = {0, 0};
    SYS(setrlimit(RLIMIT_CORE, &no_core));
    for (int i = 0; i < 2; i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            signal(signals[i], SIG_DFL);
            if (i == 0)
                *(volatile char *)gone;
            else
                *(volatile char *)(file + 3 * PAGE);
            _exit(0);
        }
        wait_signal(child, signals[i]);
    }
    return 0;
}
