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

/* Whether memory is registered for missing pages (`um`), as what is managed is. */
static bool is_registered(const unsigned char *at)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file);
    char line[512];
    bool is_here = false, registered = false;
    while (fgets(line, sizeof line, file)) {
        size_t start, end;
        if (sscanf(line, "%zx-%zx ", &start, &end) == 2)
            is_here = start <= (size_t)at && (size_t)at < end;
        else if (is_here && strncmp(line, "VmFlags:", 8) == 0)
            registered = strstr(line, " um") != NULL;
    }
    fclose(file);
    return registered;
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
    /* What was mapped without access is managed when it has some again. Before that it need not be, and
     * may be: whoever reads the mappings meanwhile does not know that it was given back. */
    bool managed = getenv("HAZARD_MANAGED") && is_registered(at + 5 * PART);
    churn();
    commit(at + 4 * PART, PART, by_mapping);
    if (managed)
        CHECK(is_registered(at + 4 * PART));
    verify_zero(at + 4 * PART, PART);
    verify(at + 5 * PART, PART, 6);
    /* Given back in one way and taken in the other. */
    uncommit(at + 4 * PART, PART, true);
    commit(at + 4 * PART, PART, false);
    if (managed)
        CHECK(is_registered(at + 4 * PART));
    verify_zero(at + 4 * PART, PART);
    fill(at + 4 * PART, PART, 5);
    churn();
    verify(at + 4 * PART, PART, 5);
    uncommit(at + 4 * PART, PART, true);
    commit(at + 4 * PART, PART, by_mapping);
    verify_zero(at + 4 * PART, PART);
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

/* What was given back is one mapping with what is still reserved beside it: mremap takes one. */
static void move(void)
{
    unsigned char *at = reserve(NULL);
    commit(at, 2 * PART, true);
    fill(at, 2 * PART, 1);
    churn();
    uncommit(at + PART, PART, true);
    unsigned char *to = mremap(at + PART, 2 * PART, 3 * PART, MREMAP_MAYMOVE);
    CHECKF(to != MAP_FAILED, "%s", strerror(errno));
    commit(to, 3 * PART, false);
    verify_zero(to, 3 * PART);
    fill(to, 3 * PART, 2);
    churn();
    verify(to, 3 * PART, 2);
    verify(at, PART, 1);
    SYS(munmap(to, 3 * PART));
    SYS(munmap(at, PARTS * PART));
}

int main(void)
{
    use(reserve(NULL), false);
    use(reserve(NULL), true);
    use(reserve((void *)0x300000000ul), false);
    use(reserve((void *)0x300000000ul), true);
    move();
    return 0;
}
