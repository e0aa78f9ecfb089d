/* Forks while another thread maps so much that managing begins: a child must find it
 * begun or not begun, never in the middle, with nobody to end it. */
#include "hazard.h"

enum { CHILDREN = 24, MAPPINGS = 4 };
static atomic_bool go, done;

static void *mapper(void *unused)
{
    (void)unused;
    while (!atomic_load(&go))
        ;
    for (int i = 0; i < MAPPINGS; i++)
        fill(map(2 * MIB), 16 * PAGE, (uint64_t)i);
    atomic_store(&done, true);
    return NULL;
}

int main(void)
{
    pid_t children[CHILDREN];
    int count = 0;
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, mapper, NULL));
    atomic_store(&go, true);
    while (count < 2 || (count < CHILDREN && !atomic_load(&done))) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            alarm(60); /* a child that spins for ever ends by it */
            for (uint64_t i = 0; i < 8; i++) {
                unsigned char *at = map(MIB);
                fill(at, QUARTER, i);
                char *block = malloc(3 * MIB);
                CHECK(block);
                memset(block, (int)i, QUARTER);
                verify(at, QUARTER, i);
                CHECK(block[QUARTER - 1] == (char)i);
            }
            _exit(0);
        }
        children[count++] = child;
    }
    PTHREAD(pthread_join(thread, NULL));
    for (int i = 0; i < count; i++)
        wait_ok(children[i]);
    return 0;
}
