/* A program that uses userfaultfd itself, on memory that is managed already and has partly left:
 * it must get it, with what is in it, and the rest of its memory must stay what it is. */
#include "own_userfaultfd.h"

int main(void)
{
    const size_t bytes = 4 * QUARTER;
    int faults = open_userfaultfd();
    unsigned char *other = map(8 * QUARTER);
    fill(other, 8 * QUARTER, 1);
    unsigned char *at = map(bytes);
    fill(at, bytes, 2);
    churn();

    SYS(register_for_missing(faults, at, bytes));
    verify(at, bytes, 2);
    /* What is discarded the program fills itself. */
    SYS(madvise(at, bytes / 2, MADV_DONTNEED));
    struct missing missing = {faults, at, bytes / 2 / PAGE};
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, serve_missing, &missing));
    verify(at, bytes / 2, 6);
    PTHREAD(pthread_join(thread, NULL));
    verify_from(at + bytes / 2, bytes / 2, 2, bytes / 2 / PAGE);
    churn();
    verify(other, 8 * QUARTER, 1);

    /* What another of its own handles has, it does not get. */
    CHECK(register_for_missing(open_userfaultfd(), at, bytes) == -1 && errno == EBUSY);
    return 0;
}
