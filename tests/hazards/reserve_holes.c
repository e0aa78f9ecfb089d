/* A reservation gets many more holes than anybody notes parts: before anything is managed, in more
 * addresses than are managed as a whole, and in memory that was given back by a mapping without access.
 * Whatever part is used in the end is within the budget, and holds what was written to it. */
#include "hazard.h"

/* Beyond 1,024 parts. The last of them are used: of a full list, the least part was lost each time. */
enum { PARTS = 1400, USED = 400 };
#define RESERVED (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
/* Of each part, so much is used. */
#define LEN (39 * PAGE)

static void punch(unsigned char *at, size_t stride)
{
    for (size_t i = 1; i <= PARTS; i++)
        SYS(munmap(at + i * stride - PAGE, PAGE));
}

static void use(unsigned char *at, size_t stride)
{
    size_t before = anonymous();
    for (size_t i = PARTS - USED; i < PARTS; i++) {
        unsigned char *part = at + i * stride;
        SYS(mprotect(part, LEN, PROT_READ | PROT_WRITE));
        for (size_t page = 0; page < LEN; page += PAGE)
            memset(part + page, (int)(i % 251 + 1), PAGE);
    }
    churn();
    size_t now = anonymous();
    if (is_managed())
        CHECKF(now < before + 24 * MIB, "%zu KiB of %zu are resident", (now - before) / KIB,
               USED * LEN / KIB);
    pid_t child = (pid_t)SYS(fork());
    for (size_t i = PARTS - USED; i < PARTS; i++)
        for (size_t page = 0; page < LEN; page += PAGE) {
            const unsigned char *here = at + i * stride + page;
            CHECKF(here[0] == i % 251 + 1 && here[PAGE - 1] == here[0],
                   "part %zu holds %u and %u, expected %zu", i, here[0], here[PAGE - 1], i % 251 + 1);
        }
    if (child == 0)
        _exit(0);
    wait_ok(child);
    SYS(munmap(at, PARTS * stride));
}

int main(void)
{
    /* At a place of the program's own choice, of which nothing is accessible yet. */
    size_t stride = LEN + PAGE, bytes = PARTS * stride;
    unsigned char *at = mmap((void *)0x360000000000, bytes, PROT_NONE, RESERVED, -1, 0);
    CHECK(at != MAP_FAILED);
    punch(at, stride);
    use(at, stride);

    at = mmap(NULL, 65 * GIB, PROT_NONE, RESERVED, -1, 0);
    if (at == MAP_FAILED)
        skip("so many addresses cannot be reserved here");
    punch(at, 32 * MIB);
    use(at, 32 * MIB);
    SYS(munmap(at + PARTS * 32 * MIB, 65 * GIB - PARTS * 32 * MIB));

    /* In the middle of memory of which more is in use. */
    unsigned char *all = map_with(bytes + MIB, MAP_NORESERVE);
    fill(all, MIB, 1);
    at = all + MIB;
    CHECK(mmap(at, bytes, PROT_NONE, RESERVED | MAP_FIXED, -1, 0) == at);
    punch(at, stride);
    use(at, stride);
    verify(all, MIB, 1);
    return 0;
}
