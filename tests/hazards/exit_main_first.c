/* main leaves with pthread_exit; the process lives on in its other threads,
 * whose memory is absent, and ends with the status of the last. */
#include "hazard.h"

static unsigned char *at;
static const size_t bytes = 4 * QUARTER;
static pthread_t first;

static void *last(void *argument)
{
    (void)argument;
    PTHREAD(pthread_join(first, NULL));
    churn();
    verify(at, bytes, 1);
    fill(at, bytes, 2);
    churn();
    verify(at, bytes, 2);
    pid_t child = (pid_t)SYS(fork()); /* from a process whose main thread is gone */
    if (child == 0) {
        verify(at, bytes, 2);
        churn();
        verify(at, bytes, 2);
        _exit(0);
    }
    wait_ok(child);
    return NULL;
}

int main(void)
{
    at = map(bytes);
    fill(at, bytes, 1);
    churn();
    first = pthread_self();
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, last, NULL));
    PTHREAD(pthread_detach(thread));
    pthread_exit(NULL);
}
