/* Mappings come and go, or move, many thousand times without being touched; and as many are there
 * at once. What is used afterwards is as good as what was used before. */
#include "hazard.h"

enum { TIMES = 17000 };
#define LEN (2 * MIB)

static unsigned char *plain(size_t bytes)
{
    unsigned char *at =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

/* Far more than the budget, of which little may stay. */
static void use_much(void)
{
    size_t much = 64 * MIB, before = anonymous();
    unsigned char *at = plain(much);
    for (size_t i = 0; i < much; i += PAGE)
        memset(at + i, (int)(i / PAGE % 251), PAGE);
    if (is_managed())
        CHECKF(anonymous() < before + 32 * MIB, "%zu KiB are resident", anonymous() / KIB);
    for (size_t i = 0; i < much; i += PAGE)
        CHECK(at[i] == i / PAGE % 251 && at[i + PAGE - 1] == at[i]);
    SYS(munmap(at, much));
}

int main(void)
{
    unsigned char *kept = plain(LEN);
    fill(kept, LEN, 1);
    churn();

    for (int i = 0; i < TIMES; i++)
        SYS(munmap(plain(LEN), LEN));
    use_much();
    verify(kept, LEN, 1);

    unsigned char *other = plain(LEN);
    SYS(munmap(other, LEN));
    for (int i = 0; i < TIMES; i++) {
        unsigned char *moved =
            mremap(kept, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, other);
        CHECK(moved == other);
        other = kept;
        kept = moved;
    }
    use_much();
    verify(kept, LEN, 1);

    static unsigned char *many[TIMES];
    for (int i = 0; i < TIMES; i++) {
        many[i] = plain(64 * KIB);
        if (i % 10 == 0)
            fill_from(many[i], PAGE, (uint64_t)i, 0);
    }
    use_much();
    for (int i = 0; i < TIMES; i++) {
        if (i % 10 == 0)
            verify_from(many[i], PAGE, (uint64_t)i, 0);
        if (i % 1000 == 0)
            verify_zero(many[i] + PAGE, PAGE);
        SYS(munmap(many[i], 64 * KIB));
    }
    verify(kept, LEN, 1);
    return 0;
}
