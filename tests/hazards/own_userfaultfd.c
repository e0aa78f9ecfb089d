/* A program that uses userfaultfd itself, on its own ordinary memory: the
 * kernel gives a range to one descriptor only. */
#include "own_userfaultfd.h"

int main(void)
{
    const size_t bytes = 1 * QUARTER;
    int faults = open_userfaultfd();
    unsigned char *at = map(bytes);
    SYS(register_for_missing(faults, at, bytes));
    struct missing missing = {faults, at, bytes / PAGE};
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, serve_missing, &missing));
    verify(at, bytes, 6);
    PTHREAD(pthread_join(thread, NULL));
    churn();
    verify(at, bytes, 6);
    SYS(munmap(at, bytes));
    return 0;
}
