/* Memory is reserved without access, at an address of the program's choice or not, and
 * becomes accessible in parts, by mprotect or by new mappings in place of the old, as
 * run-time systems of Java and JavaScript do. It is given back and taken again. */
#include "hazard.h"

#define PARTS 16
#define PART (4 * QUARTER)

static unsigned char *reserve(void *hint)
{
    unsigned char *at = mmap(hint, PARTS * PART, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
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

static void use(unsigned char *at, bool by_mapping)
{
    for (size_t i = 0; i < PARTS; i += 2) {
        commit(at + i * PART, PART, by_mapping);
        verify_zero(at + i * PART, PART);
        fill(at + i * PART, PART, i + 1);
    }
    /* The others as one with their neighbours: what these hold stays. */
    for (size_t i = 1; i < PARTS; i += 2) {
        commit(at + i * PART, PART, by_mapping);
        fill(at + i * PART, PART, i + 1);
    }
    for (size_t i = 0; i < PARTS; i++)
        verify(at + i * PART, PART, i + 1);
    /* Back, and again: empty. */
    uncommit(at + 3 * PART, 2 * PART, by_mapping);
    churn();
    commit(at + 4 * PART, PART, by_mapping);
    verify_zero(at + 4 * PART, PART);
    verify(at + 5 * PART, PART, 6);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(at + 2 * PART, PART, 3);
        commit(at + 3 * PART, PART, by_mapping);
        verify_zero(at + 3 * PART, PART);
        fill(at + 3 * PART, PART, 77);
        verify(at + 3 * PART, PART, 77);
        verify(at + 15 * PART, PART, 16);
        _exit(0);
    }
    wait_ok(child);
    SYS(munmap(at + 6 * PART, 2 * PART));
    churn();
    verify(at + 5 * PART, PART, 6);
    verify(at + 8 * PART, PART, 9);
    SYS(munmap(at, PARTS * PART));
}

int main(void)
{
    use(reserve(NULL), false);
    use(reserve(NULL), true);
    use(reserve((void *)0x300000000ul), false);
    use(reserve((void *)0x300000000ul), true);
    return 0;
}
