/* A thread makes the main heap grow while another forks: the child's heap must be managed all
 * the same. */
#include "hazard.h"
#include <malloc.h>

enum { ROUNDS = 4, BLOCK = 100000, BLOCKS = 160 };
static atomic_bool on, stop;

static void *grower(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        if (!atomic_load(&on)) {
            sched_yield();
            continue;
        }
        char *block = malloc(2 * BLOCK);
        CHECK(block);
        block[0] = 1;
    }
    return NULL;
}

int main(void)
{
    mallopt(M_ARENA_MAX, 1);
    char *begin = sbrk(0);
    for (int i = 0; i < 20; i++)
        memset(malloc(BLOCK), 1, BLOCK); /* managing begins */
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, grower, NULL));
    for (int round = 0; round < ROUNDS; round++) {
        atomic_store(&on, true);
        usleep(1000);
        pid_t child = (pid_t)SYS(fork());
        atomic_store(&on, false);
        if (child == 0) {
            char *blocks[BLOCKS];
            for (int i = 0; i < BLOCKS; i++) {
                blocks[i] = malloc(BLOCK);
                CHECK(blocks[i]);
                memset(blocks[i], i, BLOCK);
            }
            for (int i = 0; i < BLOCKS; i++)
                CHECK(blocks[i][0] == (char)i && blocks[i][BLOCK - 1] == (char)i);
            size_t heap = (size_t)((char *)sbrk(0) - begin) & ~(PAGE - 1);
            size_t resident = present_pages(begin, heap) * PAGE;
            /* 16 MiB are written. */
            CHECKF(!is_managed() || resident < 8 * MIB, "%zu KiB of the heap are resident",
                   resident / KIB);
            _exit(0);
        }
        wait_ok(child);
    }
    atomic_store(&stop, true);
    PTHREAD(pthread_join(thread, NULL));
    return 0;
}
