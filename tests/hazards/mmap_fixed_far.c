/* Memory at addresses of the program's own choice (MAP_FIXED) where the kernel puts nothing by itself, as
 * run-time systems and emulators have it, and beside what the program was given. Nothing else that the
 * program has is touched by it, whether that came before or comes after. */
#include "hazard.h"

#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)
enum { OTHERS = 6, MANY = 200 };

static unsigned char *mapped[2][OTHERS], *blocks[2][OTHERS];
static const size_t part = 2 * QUARTER, block = 5 * QUARTER;

static void have_others(int round)
{
    for (int i = 0; i < OTHERS; i++) {
        mapped[round][i] = map(part);
        blocks[round][i] = aligned_alloc(PAGE, block);
        CHECK(blocks[round][i]);
        fill(mapped[round][i], part, 10 * round + i);
        fill(blocks[round][i], block, 100 + 10 * round + i);
    }
}

static void verify_others(int round)
{
    for (int i = 0; i < OTHERS; i++) {
        verify(mapped[round][i], part, 10 * round + i);
        verify(blocks[round][i], block, 100 + 10 * round + i);
    }
}

static unsigned char *map_at(unsigned char *at, size_t bytes, int prot, int flags)
{
    unsigned char *got = mmap(at, bytes, prot, flags, -1, 0);
    CHECKF(got == at, "mmap at %p: %p: %s", (void *)at, (void *)got, strerror(errno));
    return got;
}

static void use(unsigned char *at, uint64_t seed)
{
    size_t bytes = 6 * QUARTER;
    SYS(munmap(map_at(at, bytes, RW, ANON | MAP_FIXED_NOREPLACE), bytes));
    map_at(at, bytes, RW, ANON | MAP_FIXED);
    verify_zero(at, bytes);
    fill(at, bytes, seed);
    churn();
    verify(at, bytes, seed);
    /* A part is replaced, a part has no access any more, and comes back empty. */
    map_at(at + part, part, RW, ANON | MAP_FIXED);
    map_at(at + 2 * part, part, PROT_NONE, ANON | MAP_FIXED | MAP_NORESERVE);
    churn();
    verify_zero(at + part, part);
    SYS(mprotect(at + 2 * part, part, RW));
    verify_zero(at + 2 * part, part);
    verify(at, part, seed);
    /* Memory of another kind in its place. */
    map_at(at, bytes, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED);
    verify_zero(at, bytes);
    fill(at, bytes, seed + 1);
    churn();
    verify(at, bytes, seed + 1);
    verify_others(0);
    SYS(munmap(at, bytes));
    CHECK(msync(at, bytes, MS_ASYNC) == -1 && errno == ENOMEM);
}

/* What the program is given from here on lies around it. */
static void lie_beside(void)
{
    size_t bytes = 100 * MIB;
    unsigned char *first = map(part), *at = (unsigned char *)(((uintptr_t)first + 64 * MIB) & -PAGE);
    fill(first, part, 77);
    if (mmap(at, bytes, RW, ANON | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != at) {
        /* Plain Linux has something there. */
        CHECK(errno == EEXIST);
        return;
    }
    fill(at, part, 78);
    fill(at + bytes - part, part, 79);
    static unsigned char *more[MANY];
    for (int i = 0; i < MANY; i++) {
        more[i] = map(2 * MIB);
        CHECK(more[i] + 2 * MIB <= at || more[i] >= at + bytes);
        fill(more[i], PAGE, 200 + i);
    }
    churn();
    verify(first, part, 77);
    verify(at, part, 78);
    verify_zero(at + part, 4 * part);
    verify(at + bytes - part, part, 79);
    for (int i = 0; i < MANY; i++) {
        verify(more[i], PAGE, 200 + i);
        SYS(munmap(more[i], 2 * MIB));
    }
    SYS(munmap(at, bytes));
    verify(first, part, 77);
}

int main(void)
{
    /* Go's heap; where Terrace once had its own memory, and what it manages, in every process. */
    const uintptr_t addresses[] = { 0xc000000000, 0xe0000000000, 0xe0000001000, 0x100000000000,
                                    0x100000200000, 0x120000000000, 0x200000000000 };
    have_others(0);
    churn();
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++)
        use((unsigned char *)addresses[i], 1000 + 10 * i);
    have_others(1);
    lie_beside();
    churn();
    verify_others(0);
    verify_others(1);
    return 0;
}
