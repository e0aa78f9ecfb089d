/* Small pieces are mapped anew in the middle of memory in use, as allocators do that discard so.
 * For the kernel all stays one mapping: a process may have few of them, and mremap takes one. */
#include "hazard.h"

enum { PIECES = 1000, ROUNDS = 12 };
#define LEN (2 * PIECES * PAGE)
#define RW (PROT_READ | PROT_WRITE)
#define PRIVATE (MAP_PRIVATE | MAP_ANONYMOUS)

/* Mappings of the process. */
static size_t mappings(void)
{
    static char buffer[64 * KIB];
    int fd = (int)SYS(open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
    size_t lines = 0;
    for (ssize_t n; (n = SYS(read(fd, buffer, sizeof buffer))) > 0;)
        for (ssize_t i = 0; i < n; i++)
            lines += buffer[i] == '\n';
    SYS(close(fd));
    return lines;
}

static void map_at(unsigned char *at, size_t bytes, int prot, int how)
{
    CHECK(mmap(at, bytes, prot, PRIVATE | how, -1, 0) == at);
}

/* The pages of one parity. */
static void verify_half(unsigned char *at, size_t parity, uint64_t seed)
{
    for (size_t page = parity; page < 2 * PIECES; page += 2)
        verify_from(at + page * PAGE, PAGE, seed, page);
}

static void many(void)
{
    unsigned char *at = map(LEN);
    fill(at, LEN, 1);
    churn();
    size_t before = mappings();
    for (size_t page = 0; page < 2 * PIECES; page += 2) {
        unsigned char *piece = at + page * PAGE;
        switch (page / 2 % 4) {
        case 0:
            map_at(piece, PAGE, RW, MAP_FIXED);
            break;
        case 1:
            SYS(munmap(piece, PAGE));
            map_at(piece, PAGE, RW, MAP_FIXED_NOREPLACE);
            break;
        case 2:
            map_at(piece, PAGE, PROT_NONE, MAP_FIXED);
            SYS(mprotect(piece, PAGE, RW));
            break;
        case 3:
            map_at(piece, PAGE, PROT_READ, MAP_FIXED);
            verify_zero(piece, PAGE);
            SYS(mprotect(piece, PAGE, RW));
            break;
        }
        if (page % 32 == 0)
            verify_zero(piece, PAGE);
        fill_from(piece, PAGE, 2, page);
    }
    size_t now = mappings();
    /* What was read before it could be written has a page of its own, and a mapping. */
    CHECKF(now < before + PIECES, "%zu mappings, and %zu before", now, before);
    churn();
    verify_half(at, 0, 2);
    verify_half(at, 1, 1);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify_half(at, 1, 1);
        verify_half(at, 0, 2);
        churn();
        verify_half(at, 0, 2);
        _exit(0);
    }
    wait_ok(child);
    verify_half(at, 0, 2);
    SYS(munmap(at, LEN));
}

/* Of a mapping a half is mapped anew, or changes its length; then the whole is moved. */
static void moved(void)
{
    size_t part = 4 * PAGE;
    unsigned char *side = mmap(NULL, 16 * QUARTER, PROT_NONE, PRIVATE, -1, 0);
    CHECK(side != MAP_FAILED);
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char *room = map(16 * part), *at = room + 4 * part, *half = at + part;
        SYS(munmap(room, 4 * part));
        SYS(munmap(at + 2 * part, 10 * part));
        fill(at, 2 * part, 1);
        switch (round % 6) {
        case 0:
            CHECK(mremap(at, 2 * part, part, 0) == at);
            map_at(half, part, RW, MAP_FIXED);
            break;
        case 1:
            SYS(munmap(half, part));
            map_at(half, part, RW, MAP_FIXED_NOREPLACE);
            break;
        case 2:
            map_at(half, part, RW, MAP_FIXED);
            break;
        case 3:
            SYS(munmap(half, part));
            CHECK(mmap(half, part, RW, PRIVATE, -1, 0) == half);
            break;
        case 4:
            SYS(munmap(half, part));
            CHECK(mremap(at, part, 2 * part, 0) == at);
            break;
        case 5:
            SYS(mprotect(half, part, PROT_NONE));
            churn();
            SYS(mprotect(half, part, RW));
            map_at(half, part, RW, MAP_FIXED);
            break;
        }
        unsigned char *to = side + (round % 4) * 4 * QUARTER;
        int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (round % 4 == 3 ? MREMAP_DONTUNMAP : 0);
        CHECKF(mremap(at, 2 * part, 2 * part, flags, to) == to, "round %d: %s", round,
               strerror(errno));
        verify(to, part, 1);
        verify_zero(to + part, part);
        fill(to, 2 * part, 3);
        churn();
        verify(to, 2 * part, 3);
        /* It grows as one. */
        unsigned char *grown = mremap(to, 2 * part, 3 * part, MREMAP_MAYMOVE);
        CHECKF(grown != MAP_FAILED, "round %d: %s", round, strerror(errno));
        verify(grown, 2 * part, 3);
        verify_zero(grown + 2 * part, part);
        SYS(munmap(grown, 3 * part));
    }
}

int main(void)
{
    many();
    moved();
    return 0;
}
