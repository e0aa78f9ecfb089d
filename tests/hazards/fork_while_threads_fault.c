/* A fork in the middle of other threads' faults: no lock may stay held in the
 * child, nothing the others were doing may be torn in either process. */
#include "hazard.h"

enum { THREADS = 3 };
static const size_t slice = QUARTER;
static unsigned char *at;
static atomic_bool stop;

static void *writer(void *argument)
{
    uint64_t id = (uint64_t)(uintptr_t)argument;
    unsigned char *mine = at + id * slice;
    for (uint64_t round = 0; !atomic_load(&stop); round++)
        for (size_t page = 0; page < slice / PAGE && !atomic_load(&stop); page++) {
            volatile uint64_t *word = (uint64_t *)(mine + page * PAGE);
            word[1] = word[0] + 1; /* word 1 is never behind word 0 */
            word[0] = word[1];
        }
    return NULL;
}

int main(void)
{
    size_t bytes = 4 * QUARTER;
    unsigned char *still = map(bytes);
    at = map(THREADS * slice);
    fill(still, bytes, 1);
    pthread_t thread[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&thread[i], NULL, writer, (void *)i));
    for (int round = 0; round < 3; round++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            verify(still, bytes, 1);
            for (size_t page = 0; page < THREADS * slice / PAGE; page++) {
                uint64_t *word = (uint64_t *)(at + page * PAGE);
                CHECKF(word[1] - word[0] <= 1, "page %zu is torn: %llu %llu", page,
                       (unsigned long long)word[0], (unsigned long long)word[1]);
                word[0] = 0; /* and may be written */
            }
            _exit(0);
        }
        wait_ok(child);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_join(thread[i], NULL));
    for (size_t page = 0; page < THREADS * slice / PAGE; page++) {
        uint64_t *word = (uint64_t *)(at + page * PAGE);
        CHECK(word[0] == word[1]);
    }
    verify(still, bytes, 1);
    return 0;
}
