/* While a thread discards memory without a pause, in each way that the kernel tells of, another reads
 * what is absent. A page cannot be filled while memory is being discarded: it must have its turn all
 * the same. One in a moment of luck each would take minutes here. */
#include "hazard.h"

enum { PAGES = 512, READS = 4000 };
static const size_t bytes = PAGES * PAGE, piece = 16 * PAGE;
static unsigned char *scratch;
static atomic_bool stop;
static atomic_size_t done;
/* Advice, or a new mapping in the old one's place. */
enum { MAPPED_OVER = -1 };
static const int ways[] = {MADV_FREE, MADV_DONTNEED, MAPPED_OVER};

static void discard(unsigned char *at, int way)
{
    if (way != MAPPED_OVER)
        SYS(madvise(at, piece, way));
    else
        CHECK(mmap(at, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
}

static void *discards(void *way)
{
    for (size_t i = 0; !atomic_load(&stop); i++) {
        unsigned char *at = scratch + i % 16 * piece;
        discard(at, ways[(uintptr_t)way]);
        memset(at, 1, piece);
        atomic_fetch_add(&done, 1);
    }
    return NULL;
}

int main(void)
{
    scratch = map(16 * piece);
    fill(scratch, 16 * piece, 2);
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    for (uintptr_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        atomic_store(&stop, false);
        pthread_t thread;
        PTHREAD(pthread_create(&thread, NULL, discards, (void *)way));
        for (size_t before = atomic_load(&done); atomic_load(&done) < before + 100;)
            sched_yield();
        for (size_t i = 0; i < READS; i++) {
            size_t page = i * 211 % PAGES;
            verify_from(at + page * PAGE, PAGE, 1, page);
        }
        atomic_store(&stop, true);
        PTHREAD(pthread_join(thread, NULL));
        verify(at, bytes, 1);
    }
    return 0;
}
