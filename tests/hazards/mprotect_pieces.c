/* Protection changes cut a mapping into hundreds of pieces and join them again,
 * while threads fault on them. */
#include "hazard.h"

static const size_t bytes = 4 * QUARTER;
static unsigned char *at;
static atomic_bool stop;

static void *reader(void *argument)
{
    (void)argument;
    while (!atomic_load(&stop))
        for (size_t page = 0; page < bytes / PAGE && !atomic_load(&stop); page++) {
            uint64_t got = ((volatile uint64_t *)at)[page * WORDS + 100];
            CHECKF(got == pattern(1, page, 100), "page %zu: %#llx", page, (unsigned long long)got);
        }
    return NULL;
}

int main(void)
{
    at = map(bytes);
    fill(at, bytes, 1);
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, reader, NULL));
    for (int round = 0; round < 4; round++) {
        for (size_t page = (size_t)round % 2; page < bytes / PAGE; page += 3)
            SYS(mprotect(at + page * PAGE, PAGE, PROT_READ));
        churn();
        if (round % 2) {
            SYS(mprotect(at, bytes, PROT_READ | PROT_WRITE));
        } else {
            for (size_t page = 0; page < bytes / PAGE; page++)
                SYS(mprotect(at + page * PAGE, PAGE, PROT_READ | PROT_WRITE));
        }
        for (size_t page = 0; page < bytes / PAGE; page += 7)
            fill_from(at + page * PAGE, PAGE, 1, page); /* the same content, written again */
    }
    atomic_store(&stop, true);
    PTHREAD(pthread_join(thread, NULL));
    verify(at, bytes, 1);
    return 0;
}
