/* Eight writers over memory several times the budget. Each keeps a private
 * shadow of what it wrote and adds to shared counters; an eviction that races
 * with a store and loses it shows as a difference in the end. */
#include "hazard.h"

enum { THREADS = 8, STEPS = 800 };
static const size_t own_pages = 64, shared_pages = 128;
static uint64_t *own, *shared;
static atomic_ulong additions[128];

static void *writer(void *argument)
{
    uint64_t id = (uint64_t)(uintptr_t)argument, random = mix(id);
    uint64_t *mine = own + id * own_pages * WORDS;
    uint64_t shadow[64] = {0};
    for (int step = 0; step < STEPS; step++) {
        random = mix(random);
        size_t page = random % own_pages, slot = random >> 32 & 511;
        uint64_t *word = &mine[page * WORDS];
        /* The page's sum and the written word change together, by plain stores. */
        CHECKF(word[0] == shadow[page], "thread %llu page %zu: %#llx, expected %#llx",
               (unsigned long long)id, page, (unsigned long long)word[0],
               (unsigned long long)shadow[page]);
        shadow[page] = random | 1;
        word[0] = shadow[page];
        word[1 + slot % 511] += 1;
        size_t target = (random >> 16) % shared_pages;
        __atomic_fetch_add(&shared[target * WORDS + (random >> 48 & 511)], 1, __ATOMIC_RELAXED);
        atomic_fetch_add_explicit(&additions[target], 1, memory_order_relaxed);
    }
    uint64_t total = 0;
    for (size_t page = 0; page < own_pages; page++) {
        CHECKF(mine[page * WORDS] == shadow[page], "thread %llu page %zu at the end",
               (unsigned long long)id, page);
        for (size_t i = 1; i < WORDS; i++)
            total += mine[page * WORDS + i];
    }
    CHECKF(total == STEPS, "thread %llu: %llu of %d private additions are left",
           (unsigned long long)id, (unsigned long long)total, STEPS);
    return NULL;
}

int main(void)
{
    own = map(THREADS * own_pages * PAGE);
    shared = map(shared_pages * PAGE);
    pthread_t thread[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&thread[i], NULL, writer, (void *)i));
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_join(thread[i], NULL));
    churn();
    for (size_t page = 0; page < shared_pages; page++) {
        uint64_t total = 0;
        for (size_t i = 0; i < WORDS; i++)
            total += shared[page * WORDS + i];
        CHECKF(total == atomic_load(&additions[page]), "shared page %zu: %llu of %lu additions are left",
               page, (unsigned long long)total, atomic_load(&additions[page]));
    }
    return 0;
}
