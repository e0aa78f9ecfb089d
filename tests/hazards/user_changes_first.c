/* Services are started by root and go on as somebody else before they have much
 * memory: workers that are forked and then change their user, some of them in
 * another root; renderers that give up their rights alone; a process that is
 * somebody else for a while only. What they have afterwards is to leave memory
 * like anybody's, and come back. */
#include "hazard.h"
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>

enum { USER = 65534 };

/* /proc/self/pagemap is root's now. */
static size_t present(const void *at, size_t bytes)
{
    static unsigned char seen[8 * QUARTER / PAGE];
    SYS(mincore((void *)at, bytes, seen));
    size_t present = 0;
    for (size_t page = 0; page < bytes / PAGE; page++)
        present += seen[page] & 1;
    return present;
}

/* A mapping grows where it is. How far it goes the list of mappings says, which is out of reach in
 * another root. */
static void grow(void)
{
    unsigned char *at = map(MIB);
    fill(at, MIB, 4);
    at = mremap(at, MIB, MIB + QUARTER, MREMAP_MAYMOVE);
    CHECKF(at != MAP_FAILED, "mremap: %s", strerror(errno));
    verify_zero(at + MIB, QUARTER);
    fill_from(at + MIB, QUARTER, 4, MIB / PAGE);
    churn();
    verify(at, MIB + QUARTER, 4);
    SYS(munmap(at, MIB + QUARTER));
}

/* Whether it may have children that are managed: who has given up its rights without
 * becoming somebody else may not, and says so. */
static bool forks = true;

static void serve(void)
{
    size_t bytes = 8 * QUARTER, pages = bytes / PAGE;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    churn();
    size_t there = present(at, bytes);
    if (is_managed())
        CHECKF(there < pages / 4, "%zu of %zu pages are still present after a churn", there, pages);
    verify(at, bytes, 1);
    grow();
    unsigned char *heap = malloc(bytes);
    CHECK(heap);
    fill_bytes(heap, bytes, 2);
    churn();
    verify_bytes(heap, bytes, 2);
    verify(at, bytes, 1);
    if (!forks) {
        free(heap);
        return;
    }
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(at, bytes, 1);
        fill(at, bytes, 3);
        verify(at, bytes, 3);
        _exit(0);
    }
    wait_ok(child);
    verify(at, bytes, 1);
    free(heap);
}

static void become_user(void)
{
    SYS(setgroups(0, NULL));
    SYS(setgid(USER));
    SYS(setuid(USER));
    CHECK(setuid(0) == -1);
}

/* As a browser's renderers do: past the C library's function for it. */
static void drop_capabilities(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    SYS(syscall(SYS_capset, &header, none));
    forks = false;
    CHECK(chroot("/") == -1);
}

static void leave_namespace(void)
{
    forks = false;
    if (unshare(CLONE_NEWUSER) != 0)
        drop_capabilities();
}

static void leave_namespace_by_number(void)
{
    forks = false;
    if (syscall(SYS_unshare, CLONE_NEWUSER) != 0)
        drop_capabilities();
}

static void worker(void (*before)(void), void (*change)(void))
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        before();
        change();
        /* What the process opens has small numbers, as ever. */
        int fd = (int)SYS(dup(0));
        CHECK(fd < 100);
        SYS(close(fd));
        serve();
        _exit(0);
    }
    wait_ok(child);
}

static void nothing(void) {}

static void close_all(void)
{
    SYS(close_range(3, ~0u, 0));
}

static void change_root(void)
{
    char name[64];
    sprintf(name, "hazard-root-%d", (int)getpid());
    SYS(mkdir(name, 0755));
    SYS(chroot(name));
    SYS(chdir("/"));
    CHECK(access("/proc", F_OK) == -1);
}

int main(void)
{
    if (geteuid() != 0)
        skip("only root may become somebody else");
    worker(nothing, become_user);
    worker(nothing, drop_capabilities);
    worker(nothing, leave_namespace);
    worker(nothing, leave_namespace_by_number);
    worker(close_all, become_user);
    worker(change_root, become_user);
    /* Its number is unlikely to be what is expected there. */
    SYS(seteuid(USER));
    SYS(close_range(3, ~0u, 0));
    for (int i = 0; i < 300; i++)
        SYS(dup(0));
    SYS(seteuid(0));
    become_user();
    serve();
    return 0;
}
