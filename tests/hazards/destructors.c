/* Thread-specific destructors, atexit handlers and library destructors run very
 * late and touch absent memory. */
#include "hazard.h"

static unsigned char *at;
static const size_t bytes = 4 * QUARTER;
static pthread_key_t key;
static atomic_int destroyed;

static void destroy(void *value)
{
    unsigned char *mine = value;
    verify(mine, 256 * KIB, 7);
    free(mine);
    churn();
    verify(at, 64 * PAGE, 1);
    atomic_fetch_add(&destroyed, 1);
}
static void *worker(void *argument)
{
    (void)argument;
    unsigned char *mine = aligned_alloc(PAGE, 256 * KIB);
    CHECK(mine);
    fill(mine, 256 * KIB, 7);
    PTHREAD(pthread_setspecific(key, mine));
    churn();
    return NULL;
}
static void at_exit(void)
{
    churn();
    verify(at, bytes, 1);
    unsigned char *fresh = malloc(QUARTER); /* memory can still be had */
    CHECK(fresh);
    memset(fresh, 3, QUARTER);
    free(fresh);
}
__attribute__((destructor)) static void very_late(void)
{
    if (at)
        verify(at, bytes, 1);
}
static unsigned char *early;
__attribute__((constructor)) static void very_early(void)
{
    early = map(2 * QUARTER); /* before main, perhaps before the preload is ready */
    fill(early, 2 * QUARTER, 4);
}

int main(void)
{
    at = map(bytes);
    fill(at, bytes, 1);
    churn();
    verify(early, 2 * QUARTER, 4);
    CHECK(atexit(at_exit) == 0);
    PTHREAD(pthread_key_create(&key, destroy));
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        PTHREAD(pthread_create(&thread[i], NULL, worker, NULL));
    for (int i = 0; i < 4; i++)
        PTHREAD(pthread_join(thread[i], NULL));
    CHECK(atomic_load(&destroyed) == 4);
    churn();
    return 0;
}
