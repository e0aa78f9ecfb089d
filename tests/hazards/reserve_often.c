/* A hundred thousand mappings of a gigabyte each are made and unmapped, first before anything is managed, and
 * then while memory is. Nothing of them is left: neither mappings, nor addresses, nor memory that is
 * outside of the budget. */
#include "hazard.h"

/* The first cost a call each, the others a request to whoever manages them. */
enum { BEFORE = 70000, MANAGED = 30000, AT_ONCE = 16 };
/* What may be left: tables grow once, and something waits to be used again. A page for each mapping
 * would be more. */
enum { MAPPINGS = 100 };
#define ADDRESSES (96 * MIB)
#define RESERVED (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

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

/* Reserved without access, or, now and then, accessible and of which a page is used. */
static void come_and_go(int times, bool some_accessible)
{
    static unsigned char *at[AT_ONCE];
    for (int batch = 0; batch < times / AT_ONCE; batch++) {
        for (int i = 0; i < AT_ONCE; i++) {
            int access = some_accessible && i % 2 ? PROT_READ | PROT_WRITE : PROT_NONE;
            at[i] = mmap(NULL, GIB, access, RESERVED, -1, 0);
            CHECKF(at[i] != MAP_FAILED, "batch %d: mmap: %s", batch, strerror(errno));
            if (access != PROT_NONE && batch % 64 == i) {
                CHECK(at[i][GIB / 2] == 0);
                at[i][GIB / 2] = 1;
            }
        }
        for (int i = 0; i < AT_ONCE; i++)
            SYS(munmap(at[batch % 2 ? i : AT_ONCE - 1 - i], GIB));
    }
}

/* Far more than the budget, of which little may stay. */
static void use_much(void)
{
    size_t much = 64 * MIB, before = anonymous();
    unsigned char *at = map(much);
    for (size_t i = 0; i < much; i += PAGE)
        memset(at + i, (int)(i / PAGE % 251), PAGE);
    size_t now = anonymous();
    if (is_managed())
        CHECKF(now < before + 32 * MIB, "%zu KiB more are resident", (now - before) / KIB);
    for (size_t i = 0; i < much; i += PAGE)
        CHECK(at[i] == i / PAGE % 251 && at[i + PAGE - 1] == at[i]);
    SYS(munmap(at, much));
}

static void times_leave_nothing(int times, bool some_accessible)
{
    come_and_go(4 * AT_ONCE, some_accessible);
    size_t before = mappings(), space = status_bytes("VmSize"), memory = anonymous();
    come_and_go(times, some_accessible);
    CHECKF(mappings() < before + MAPPINGS, "%zu mappings, and %zu before", mappings(), before);
    size_t now = status_bytes("VmSize");
    CHECKF(now < space + ADDRESSES, "%zu KiB of addresses, and %zu before", now / KIB, space / KIB);
    now = anonymous();
    CHECKF(now < memory + ADDRESSES, "%zu KiB of memory, and %zu before", now / KIB, memory / KIB);
}

int main(void)
{
    /* Strict overcommit refuses what may be written, however little of it is. */
    pid_t child = (pid_t)SYS(fork());
    if (child == 0)
        _exit(mmap(NULL, AT_ONCE * GIB, PROT_READ | PROT_WRITE, RESERVED, -1, 0) == MAP_FAILED);
    int status;
    SYS(waitpid(child, &status, 0));
    if (status != 0)
        skip("so many addresses cannot be reserved here");

    times_leave_nothing(BEFORE, false);
    unsigned char *kept = map(8 * QUARTER);
    fill(kept, 8 * QUARTER, 1);
    churn();
    use_much();
    times_leave_nothing(MANAGED, true);
    use_much();
    verify(kept, 8 * QUARTER, 1);
    return 0;
}
