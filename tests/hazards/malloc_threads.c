/* Blocks are allocated in one thread and freed in another, in every arena, while
 * memory is evicted. */
#include "hazard.h"

enum { THREADS = 4, ROUNDS = 40, QUEUE = 16 };
struct item {
    unsigned char *at;
    size_t size;
    uint64_t seed;
};
static struct item queue[QUEUE];
static int length;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *worker(void *argument)
{
    uint64_t random = (uint64_t)(uintptr_t)argument + 1;
    for (int round = 0; round < ROUNDS; round++) {
        random = mix(random);
        struct item mine = {.size = 1 + random % (random >> 40 & 1 ? 300 * KIB : 70 * KIB), .seed = random};
        mine.at = malloc(mine.size);
        CHECK(mine.at);
        for (size_t i = 0; i < mine.size; i += 512)
            mine.at[i] = (unsigned char)mix(mine.seed + i);
        PTHREAD(pthread_mutex_lock(&lock));
        struct item theirs = {0};
        if (length == QUEUE || (length && random >> 60 & 1))
            theirs = queue[--length];
        queue[length++] = mine;
        PTHREAD(pthread_mutex_unlock(&lock));
        if (theirs.at) {
            for (size_t i = 0; i < theirs.size; i += 512)
                CHECKF(theirs.at[i] == (unsigned char)mix(theirs.seed + i), "byte %zu of %zu", i, theirs.size);
            free(theirs.at);
        }
    }
    return NULL;
}

int main(void)
{
    struct churner churner;
    churner_start(&churner);
    pthread_t thread[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&thread[i], NULL, worker, (void *)i));
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_join(thread[i], NULL));
    churner_stop(&churner);
    while (length--) {
        for (size_t i = 0; i < queue[length].size; i += 512)
            CHECK(queue[length].at[i] == (unsigned char)mix(queue[length].seed + i));
        free(queue[length].at);
    }
    return 0;
}
