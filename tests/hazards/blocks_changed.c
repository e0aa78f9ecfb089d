/* What a program changes of a large block of the allocator's ends when the block is freed: its protection,
 * what children have of it, locks, what is mapped in its midst. The next block is new memory. */
#include "hazard.h"

#define GUARD_INSTALL 102

/* So long that the C library always maps one of its own for it, and unmaps that when it is freed. */
#define BLOCK (40 * MIB)
/* What is changed of it, and what is used. */
#define CHANGED (64 * PAGE)
#define USED (3 * CHANGED)

static unsigned char *shared;

static unsigned char *new_block(void)
{
    unsigned char *at = aligned_alloc(PAGE, BLOCK);
    CHECKF(at, "there is no block");
    return at;
}

static bool wipes(unsigned char *at) { return madvise(at, CHANGED, MADV_WIPEONFORK) == 0; }
static bool withholds(unsigned char *at) { return madvise(at, CHANGED, MADV_DONTFORK) == 0; }
static bool hides(unsigned char *at) { return madvise(at, CHANGED, MADV_DONTDUMP) == 0; }
static bool hides_by_number(unsigned char *at)
{
    return syscall(SYS_madvise, at, CHANGED, MADV_DONTDUMP) == 0;
}
static bool guards(unsigned char *at) { return madvise(at, CHANGED, GUARD_INSTALL) == 0; }
static bool protects(unsigned char *at) { return mprotect(at, CHANGED, PROT_READ) == 0; }
static bool protects_by_key(unsigned char *at) { return pkey_mprotect(at, CHANGED, PROT_READ, -1) == 0; }
static bool protects_by_number(unsigned char *at)
{
    return syscall(SYS_mprotect, at, CHANGED, PROT_READ) == 0;
}
static bool locks(unsigned char *at) { return mlock(at, CHANGED) == 0; }
static bool locks_when_touched(unsigned char *at) { return mlock2(at, CHANGED, MLOCK_ONFAULT) == 0; }
static bool locks_by_number(unsigned char *at) { return syscall(SYS_mlock, at, CHANGED) == 0; }
/* Also what was freed before, which is nobody's. */
static bool locks_all(unsigned char *at)
{
    (void)at;
    unsigned char *volatile kept = new_block(); /* no compiler does without it */
    free(kept);
    return mlockall(MCL_CURRENT | MCL_ONFAULT) == 0;
}
static bool unmaps(unsigned char *at) { return munmap(at, CHANGED) == 0; }
static bool moves(unsigned char *at)
{
    return mremap(at, CHANGED, CHANGED, MREMAP_MAYMOVE | MREMAP_FIXED, map(CHANGED)) != MAP_FAILED;
}
static bool maps_a_file(unsigned char *at)
{
    int fd = temp_file();
    SYS(ftruncate(fd, CHANGED));
    shared = mmap(NULL, CHANGED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(shared != MAP_FAILED);
    fill(shared, CHANGED, 1);
    return mmap(at, CHANGED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at;
}

/* `flag`: what the kernel lists of a mapping that was changed so. */
static const struct {
    const char *name;
    bool (*change)(unsigned char *);
    const char *flag;
} changes[] = {
    {"MADV_WIPEONFORK", wipes, "wf"},
    {"MADV_DONTFORK", withholds, "dc"},
    {"MADV_DONTDUMP", hides, "dd"},
    {"syscall(SYS_madvise)", hides_by_number, "dd"},
    {"MADV_GUARD_INSTALL", guards, NULL},
    {"mprotect", protects, NULL},
    {"pkey_mprotect", protects_by_key, NULL},
    {"syscall(SYS_mprotect)", protects_by_number, NULL},
    {"mlock", locks, "lo"},
    {"mlock2", locks_when_touched, "lo"},
    {"syscall(SYS_mlock)", locks_by_number, "lo"},
    {"mlockall", locks_all, "lo"},
    {"munmap", unmaps, NULL},
    {"mremap", moves, NULL},
    {"mmap of a file", maps_a_file, NULL},
};
enum { CHANGES = sizeof changes / sizeof *changes };

/* Whether the kernel lists a flag of the mapping that an address is in. */
static bool has_flag(const unsigned char *at, const char *flag)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file);
    char line[512], wanted[8];
    bool is_in = false, has = false;
    snprintf(wanted, sizeof wanted, " %s ", flag);
    while (fgets(line, sizeof line, file)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            is_in = start <= (unsigned long)at && (unsigned long)at < end;
        else if (is_in && strncmp(line, "VmFlags:", 8) == 0)
            has = strstr(line, wanted) != NULL;
    }
    fclose(file);
    return has;
}

/* In a process of its own: what one change does must not be what another has done. */
static void change_and_free(size_t number)
{
    const char *name = changes[number].name, *flag = changes[number].flag;
    size_t locked = status_bytes("VmLck");
    unsigned char *at = new_block();
    fill(at, USED, 2);
    if (!changes[number].change(at + CHANGED))
        return; /* This machine refuses it. */
    free(at);
    if (changes[number].change != locks_all)
        CHECKF(status_bytes("VmLck") == locked, "%s: what was freed is locked", name);
    at = new_block();
    CHECKF(!flag || !has_flag(at + CHANGED, flag), "%s: the next block has it, too", name);
    fill(at, USED, 3);
    churn();
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(at, USED, 3);
        _exit(0);
    }
    wait_ok(child);
    verify(at, USED, 3);
    if (shared)
        verify(shared, CHANGED, 1);
    free(at);
}

int main(void)
{
    /* One that is as it was may be used again. */
    for (int i = 0; i < 3; i++) {
        unsigned char *at = new_block();
        fill(at, USED, 4);
        churn();
        verify(at, USED, 4);
        free(at);
    }
    for (size_t number = 0; number < CHANGES; number++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            change_and_free(number);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECKF(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: %x", changes[number].name,
               (unsigned)status);
    }
    return 0;
}
