/* Forks while other threads make every kind of call that changes memory. The content of what does
 * not change must be right in each child; what changes must be as before or as after. */
#include "hazard.h"
#include <malloc.h>

enum { FORKS = 10, PAGES = 32 };
static const size_t bytes = PAGES * PAGE;
static atomic_bool stop;
/* What each thread works on; the first word of a page says which content it has. */
static unsigned char *mine[8];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void hold(void) { PTHREAD(pthread_mutex_lock(&lock)); }
static void let_go(void) { PTHREAD(pthread_mutex_unlock(&lock)); }

static void *maps(void *unused) /* mmap, first touches, munmap in parts */
{
    (void)unused;
    while (!atomic_load(&stop)) {
        /* Held as an allocator holds its lock, which fork handlers take. */
        hold();
        unsigned char *at = map(MIB);
        at[0] = 1;
        let_go();
        fill(at, bytes, 3);
        SYS(munmap(at + MIB / 2, MIB / 2));
        verify(at, bytes, 3);
        SYS(munmap(at, MIB / 2));
    }
    return NULL;
}
static void *discards(void *unused) /* madvise */
{
    (void)unused;
    while (!atomic_load(&stop)) {
        SYS(madvise(mine[0], bytes, MADV_DONTNEED));
        fill(mine[0], bytes, 4);
        SYS(madvise(mine[0], bytes, MADV_FREE));
        fill(mine[0], bytes, 4);
        SYS(madvise(mine[0] + bytes, PAGE, MADV_WIPEONFORK));
        SYS(madvise(mine[0] + bytes, PAGE, MADV_KEEPONFORK));
    }
    return NULL;
}
static void *protects(void *unused) /* mprotect, pkey_mprotect, reads */
{
    (void)unused;
    while (!atomic_load(&stop)) {
        SYS(mprotect(mine[1], bytes, PROT_READ));
        verify(mine[1], bytes, 5);
        SYS(pkey_mprotect(mine[1], bytes, PROT_READ | PROT_WRITE, -1));
    }
    return NULL;
}
static void *allocates(void *unused) /* brk, malloc, realloc, free */
{
    (void)unused;
    while (!atomic_load(&stop)) {
        for (size_t size = 50000; size < 3 * MIB; size *= 2) {
            char *block = malloc(size);
            CHECK(block);
            memset(block, 6, 5000);
            block = realloc(block, 2 * size);
            CHECK(block && block[0] == 6 && block[4999] == 6);
            free(block);
        }
        malloc_trim(0);
    }
    return NULL;
}
static void *nothing(void *argument) { return argument; }
static void *creates(void *unused) /* threads */
{
    (void)unused;
    while (!atomic_load(&stop)) {
        pthread_t thread;
        PTHREAD(pthread_create(&thread, NULL, nothing, NULL));
        PTHREAD(pthread_join(thread, NULL));
    }
    return NULL;
}
static void *moves(void *unused) /* mremap: grows, shrinks and moves */
{
    (void)unused;
    unsigned char *at = map(bytes);
    fill(at, bytes, 7);
    while (!atomic_load(&stop)) {
        at = mremap(at, bytes, 4 * MIB, MREMAP_MAYMOVE);
        CHECK(at != MAP_FAILED);
        verify(at, bytes, 7);
        at = mremap(at, 4 * MIB, bytes, 0);
        CHECK(at != MAP_FAILED);
    }
    return NULL;
}

static bool is_pattern(const unsigned char *page, uint64_t seed, size_t number)
{
    const uint64_t *words = (const void *)page;
    for (size_t i = 0; i < WORDS; i++)
        if (words[i] != pattern(seed, number, i))
            return false;
    return true;
}

int main(void)
{
    size_t large = 6 * QUARTER;
    unsigned char *still = map(large);
    fill(still, large, 1);
    mine[0] = map(bytes + PAGE);
    mine[1] = map(bytes);
    fill(mine[0], bytes, 4);
    fill(mine[1], bytes, 5);
    churn();
    PTHREAD(pthread_atfork(hold, let_go, let_go));
    void *(*const mains[])(void *) = {maps, discards, protects, allocates, creates, moves};
    enum { THREADS = sizeof mains / sizeof *mains };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&threads[i], NULL, mains[i], NULL));
    for (int i = 0; i < often(FORKS); i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            verify(still, large, 1);
            verify(mine[1], bytes, 5);
            for (size_t page = 0; page < PAGES; page++) {
                const unsigned char *at = mine[0] + page * PAGE;
                const uint64_t *words = (const void *)at;
                if (is_pattern(at, 4, page))
                    continue;
                /* Discarded, and written up to some word at most. */
                size_t word = 0;
                while (word < WORDS && words[word] == pattern(4, page, word))
                    word++;
                for (; word < WORDS; word++)
                    CHECKF(words[word] == 0, "page %zu holds neither content nor zeros", page);
            }
            SYS(mprotect(mine[1], bytes, PROT_READ | PROT_WRITE));
            fill(mine[1], bytes, 8);
            verify(mine[1], bytes, 8);
            char *block = malloc(2 * MIB);
            CHECK(block);
            memset(block, 9, 2 * MIB);
            _exit(0);
        }
        wait_ok(child);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_join(threads[i], NULL));
    verify(still, large, 1);
    verify(mine[1], bytes, 5);
    return 0;
}
