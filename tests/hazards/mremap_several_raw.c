/* One mremap moves several mappings (Linux 6.17), and is made by the instruction itself. Of mappings that
 * are registered with a userfaultfd the kernel moves one at a time: it gives an error (EFAULT) at the first
 * of them, and what lies before that has moved. Each mapping is at its old place or at its new one, with
 * its content, and can be moved by itself. */
#include "instruction.h"

enum { PARTS = 4, HOLE = 2, NONE = PARTS };
#define PART (2 * QUARTER)
#define RW (PROT_READ | PROT_WRITE)

static const int fixed = MREMAP_MAYMOVE | MREMAP_FIXED;

static void *raw_move(const unsigned char *at, size_t bytes, int flags, const unsigned char *to)
{
    return (void *)instruction(SYS_mremap, (long)at, (long)bytes, (long)bytes, flags, (long)to, 0);
}

/* Whether the kernel does so with memory that is too small to be managed. */
static bool is_done_here(void)
{
    unsigned char *at = map(4 * PAGE);
    SYS(mprotect(at, PAGE, PROT_READ));
    return raw_move(at, 2 * PAGE, fixed, at + 2 * PAGE) == at + 2 * PAGE;
}

static bool is_mapped(const unsigned char *at)
{
    unsigned char resident;
    return mincore((void *)at, PAGE, &resident) == 0;
}

/* To write, to read, a hole, to write. One of them may be shared: that is not managed. */
static unsigned char *lay_out(int shared, uint64_t seed)
{
    unsigned char *at = map(PARTS * PART);
    if (shared != NONE) {
        void *there = at + (size_t)shared * PART;
        CHECK(mmap(there, PART, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == there);
    }
    fill(at, PARTS * PART, seed);
    SYS(mprotect(at + PART, PART, PROT_READ));
    SYS(munmap(at + HOLE * PART, PART));
    return at;
}

static void verify_part(const unsigned char *place, size_t part, uint64_t seed)
{
    verify_from(place + part * PART, PART, seed, part * PART / PAGE);
}

/* The call was refused: finds each part, and moves what is at its old place. */
static void find_and_move(const unsigned char *at, const unsigned char *to, uint64_t seed)
{
    for (size_t part = 0; part < PARTS; part++) {
        size_t offset = part * PART;
        if (part == HOLE)
            continue;
        if (!is_mapped(at + offset)) {
            verify_part(to, part, seed);
            continue;
        }
        verify_part(at, part, seed);
        CHECKF(raw_move(at + offset, PART, fixed, to + offset) == to + offset, "part %zu: %s", part,
               strerror(errno));
    }
}

int main(void)
{
    static const int which[] = { NONE, 0, PARTS - 1 };
    enum { KINDS = sizeof which / sizeof *which };
    if (!is_done_here())
        skip("this kernel moves one mapping at a time");
    churn();
    bool is_refused = false;
    for (int round = 0; round < 2 * KINDS; round++) {
        int shared = which[round % KINDS];
        bool stays = round >= KINDS;
        uint64_t seed = 1 + (uint64_t)round;
        unsigned char *to = mmap(NULL, PARTS * PART, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(to != MAP_FAILED);
        unsigned char *at = lay_out(shared, seed);
        churn();
        void *moved = raw_move(at, PARTS * PART, fixed | (stays ? MREMAP_DONTUNMAP : 0), to);
        if (moved == MAP_FAILED) {
            CHECKF(errno == EFAULT, "round %d: %s", round, strerror(errno));
            is_refused = true;
            find_and_move(at, to, seed);
        } else {
            CHECK(moved == to);
            if (stays && shared != 0)
                verify_zero(at, PART);
        }
        churn();
        for (size_t part = 0; part < PARTS; part++)
            if (part != HOLE)
                verify_part(to, part, seed);
        fill(to, PART, 100 + seed);
        /* The old place can be had again. */
        SYS(munmap(at, PARTS * PART));
        CHECK(mmap(at, PARTS * PART, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
        verify_zero(at, PARTS * PART);
        churn();
        verify(to, PART, 100 + seed);
        verify_part(to, PARTS - 1, seed);
        SYS(munmap(at, PARTS * PART));
        SYS(munmap(to, PARTS * PART));
    }
    if (is_refused)
        known_limit("mremap of several mappings by the instruction itself gives EFAULT");
    return 0;
}
