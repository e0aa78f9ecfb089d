/* Pages that are discarded, mapped over or moved away while other threads fault on these very pages: what
 * a fault brings back was there when it was served. From the moment at which the call returns until
 * something is written, everybody finds zeros. */
#include "hazard.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum { PAGES = 512, PIECE = 8, PIECES = PAGES / PIECE, ROUNDS = 900, READERS = 2 };
enum { DISCARDED, MAPPED_OVER, MOVED_AWAY, WAYS };
/* What a piece goes through. Four such steps, and its content has the next version. */
enum { FULL, LEAVING, EMPTY, FILLING, STEPS };
static const size_t piece = PIECE * PAGE;
static unsigned char *at, *to;
static atomic_uint steps[PIECES];
static atomic_bool stop;

/* Every word of a page has its number, and the version of its content. */
static uint64_t content(size_t page, unsigned version)
{
    return (uint64_t)(page + 1) << 32 | version;
}

static uint64_t word(const unsigned char *from, size_t page, size_t number)
{
    return ((const volatile uint64_t *)(from + page * PAGE))[number % WORDS];
}

static void *reads(void *seed)
{
    uint64_t x = (uintptr_t)seed;
    while (!atomic_load(&stop)) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        size_t page = x % PAGES;
        atomic_uint *step = &steps[page / PIECE];
        unsigned before = atomic_load(step);
        uint64_t found = word(at, page, x >> 32);
        unsigned after = atomic_load(step), version = (unsigned)found;
        if (before == after && before % STEPS == FULL)
            CHECKF(found == content(page, before / STEPS), "page %zu: %#lx instead of version %u", page,
                   (unsigned long)found, before / STEPS);
        else if (before == after && before % STEPS == EMPTY)
            CHECKF(found == 0, "page %zu is empty, and has %#lx (step %u)", page,
                   (unsigned long)found, before);
        else
            CHECKF(found == 0 || (found == content(page, version) && version >= before / STEPS &&
                                  version <= after / STEPS + 1),
                   "page %zu: %#lx at steps %u to %u", page, (unsigned long)found, before, after);
    }
    return NULL;
}

static void write_piece(size_t number, unsigned version)
{
    for (size_t page = number * PIECE; page < (number + 1) * PIECE; page++)
        for (size_t i = 0; i < WORDS; i++)
            ((volatile uint64_t *)(at + page * PAGE))[i] = content(page, version);
}

/* False where the kernel cannot do it. */
static bool take_away(size_t number, int way)
{
    unsigned char *from = at + number * piece;
    if (way == DISCARDED) {
        SYS(madvise(from, piece, MADV_DONTNEED));
    } else if (way == MAPPED_OVER) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        CHECK(mmap(from, piece, PROT_READ | PROT_WRITE, flags, -1, 0) == from);
    } else {
        int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
        void *moved = mremap(from, piece, piece, flags, to);
        if (moved == MAP_FAILED && errno == EINVAL)
            return false;
        CHECKF(moved == to, "mremap: %s", strerror(errno));
    }
    return true;
}

int main(void)
{
    at = map(PAGES * PAGE);
    to = map(piece);
    for (size_t number = 0; number < PIECES; number++) {
        atomic_store(&steps[number], STEPS);
        write_piece(number, 1);
    }
    churn(); /* managing begins */
    pthread_t threads[READERS];
    for (uintptr_t i = 0; i < READERS; i++)
        PTHREAD(pthread_create(&threads[i], NULL, reads, (void *)(i * 7919 + 1)));
    for (int round = 0; round < often(ROUNDS); round++) {
        size_t number = (size_t)round * 29 % PIECES;
        int way = round % WAYS;
        unsigned version = atomic_load(&steps[number]) / STEPS;
        atomic_fetch_add(&steps[number], 1);
        bool done = take_away(number, way);
        if (!done)
            CHECK(take_away(number, DISCARDED));
        atomic_fetch_add(&steps[number], 1);
        for (size_t page = 0; page < PIECE; page++) {
            uint64_t kept = word(to, page, (size_t)round);
            uint64_t left = word(at, number * PIECE + page, (size_t)round);
            if (done && way == MOVED_AWAY)
                CHECKF(kept == content(number * PIECE + page, version), "moved: %#lx instead of version %u",
                       (unsigned long)kept, version);
            CHECKF(left == 0, "piece %zu is empty, and has %#lx", number, (unsigned long)left);
        }
        atomic_fetch_add(&steps[number], 1);
        write_piece(number, version + 1);
        atomic_fetch_add(&steps[number], 1);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < READERS; i++)
        PTHREAD(pthread_join(threads[i], NULL));
    return 0;
}
