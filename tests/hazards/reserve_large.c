/* Far more addresses are reserved than there is memory, and parts of them become accessible here
 * and there, by mprotect or by new mappings in place of the old, as V8 and sanitizers do. Other
 * kinds of memory lie between them, and much is given back and taken again. */
#include "hazard.h"

#define PART (2 * QUARTER)
enum { PARTS = 12 };

/* Parts lie so far apart that they are in different gigabytes, and some of them beside each other. */
static unsigned char *part(unsigned char *at, size_t i)
{
    return at + i / 3 * (5 * GIB) + i % 3 * PART + (i % 2 ? 700 * MIB : 0);
}

static void commit(unsigned char *at, size_t bytes, bool by_mapping)
{
    if (by_mapping)
        CHECK(mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                   0) == at);
    else
        SYS(mprotect(at, bytes, PROT_READ | PROT_WRITE));
}

static void uncommit(unsigned char *at, size_t bytes, bool by_mapping)
{
    if (by_mapping) {
        CHECK(mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
                   -1, 0) == at);
    } else {
        SYS(madvise(at, bytes, MADV_DONTNEED));
        SYS(mprotect(at, bytes, PROT_NONE));
    }
}

static void use(size_t bytes, void *hint, bool by_mapping)
{
    unsigned char *at =
        mmap(hint, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        skip("so many addresses cannot be reserved here");
    /* A file, and memory that is shared: these stay what they are. */
    int file = (int)SYS(memfd_create("between", 0));
    SYS(ftruncate(file, PAGE));
    unsigned char *between = at + 20 * MIB;
    CHECK(mmap(between, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == between);
    unsigned char *shared = part(at, 3) + 20 * MIB;
    CHECK(mmap(shared, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1,
               0) == shared);
    memset(between, 3, PAGE);
    memset(shared, 4, PAGE);

    for (size_t i = 0; i < PARTS; i++) {
        commit(part(at, i), PART, by_mapping);
        verify_zero(part(at, i), PART);
        fill(part(at, i), PART, i + 1);
    }
    churn();
    for (size_t i = 0; i < PARTS; i++)
        verify(part(at, i), PART, i + 1);

    /* Back, and again: empty. */
    uncommit(part(at, 4), PART, by_mapping);
    churn();
    commit(part(at, 4), PART, by_mapping);
    verify_zero(part(at, 4), PART);
    fill(part(at, 4), PART, 5);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        for (size_t i = 0; i < PARTS; i++)
            verify(part(at, i), PART, i + 1);
        unsigned char *more = at + 30 * GIB;
        commit(more, PART, by_mapping);
        verify_zero(more, PART);
        fill(more, PART, 77);
        verify(more, PART, 77);
        shared[1] = 9;
        _exit(0);
    }
    wait_ok(child);
    CHECK(between[PAGE - 1] == 3 && shared[1] == 9 && shared[2] == 4);

    /* Much at once, of which little may stay. */
    unsigned char *much = at + 40 * GIB;
    for (size_t i = 0; i < 64 * MIB; i += QUARTER) {
        commit(much + i, QUARTER, by_mapping);
        memset(much + i, (int)(i / QUARTER), QUARTER);
    }
    if (is_managed())
        CHECKF(anonymous() < 40 * MIB, "%zu KiB are resident", anonymous() / KIB);
    for (size_t i = 0; i < 64 * MIB; i += PAGE)
        CHECK(much[i] == (unsigned char)(i / QUARTER));

    SYS(munmap(part(at, 6), PART));
    verify(part(at, 7), PART, 8);
    SYS(munmap(at, bytes));
    close(file);
}

int main(void)
{
    use(65 * GIB, NULL, false);
    use(1024 * GIB, NULL, true);
    use(1024 * GIB, (void *)0x300000000000ul, false);
    use(64 * GIB, (void *)0x300000000000ul, true);
    return 0;
}
