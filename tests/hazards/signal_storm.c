/* Signals arrive in the middle of faults, as often as a timer can send them and
 * from another thread; handlers fault themselves. */
#include "hazard.h"
#include <sys/time.h>

static unsigned char *at, *for_handler;
static const size_t bytes = 3 * QUARTER;
static volatile sig_atomic_t alarms, kicks;

static void on_alarm(int signal)
{
    (void)signal;
    size_t page = (size_t)alarms * 31 % (bytes / PAGE);
    int saved = errno;
    for (size_t i = 0; i < WORDS; i += 64) {
        uint64_t got = ((volatile uint64_t *)for_handler)[page * WORDS + i];
        CHECKF(got == pattern(2, page, i), "handler: page %zu word %zu: %#llx", page, i,
               (unsigned long long)got);
    }
    errno = saved;
    alarms++;
}
static void on_kick(int signal)
{
    (void)signal;
    kicks++;
}

static atomic_bool stop;
static pthread_t main_thread;
static void *kicker(void *argument)
{
    (void)argument;
    while (!atomic_load(&stop)) {
        pthread_kill(main_thread, SIGUSR1);
        usleep(300);
    }
    return NULL;
}

int main(void)
{
    at = map(bytes);
    for_handler = map(bytes);
    fill(at, bytes, 1);
    fill(for_handler, bytes, 2);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    SYS(sigaction(SIGALRM, &action, NULL));
    action.sa_handler = on_kick;
    SYS(sigaction(SIGUSR1, &action, NULL));
    main_thread = pthread_self();
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, kicker, NULL));
    struct itimerval timer = {.it_value.tv_usec = 500, .it_interval.tv_usec = 500};
    SYS(setitimer(ITIMER_REAL, &timer, NULL));
    int fd = temp_file();
    for (uint64_t round = 1; round < 3; round++) {
        verify(at, bytes, round);
        fill(at, bytes, round + 1);
        churn();
        CHECK(SYS(pwrite(fd, at, bytes, 0)) == (long)bytes);
        churn();
        CHECK(SYS(pread(fd, at, bytes, 0)) == (long)bytes);
    }
    /* On a busy machine all that may be over before the first one comes. */
    for (int i = 0; i < 5000 && !(alarms && kicks); i++)
        verify(at, bytes, 3);
    timer = (struct itimerval){0};
    SYS(setitimer(ITIMER_REAL, &timer, NULL));
    atomic_store(&stop, true);
    PTHREAD(pthread_join(thread, NULL));
    CHECKF(alarms > 0 && kicks > 0, "no signal arrived");
    verify(at, bytes, 3);
    return 0;
}
