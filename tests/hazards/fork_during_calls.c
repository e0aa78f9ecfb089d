/* One kind of call at a time, made again and again by one thread while another forks, and then all
 * kinds at once. Of what the call changes, each child has what there was at some moment; all else is as
 * it was. Memory that is mapped, discarded, protected, and the heap, are in fork_during_events and
 * fork_during_changes. A call that this machine refuses is left out, and named in the end. */
#include "filter.h"
#include "seals.h"
#include <grp.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <malloc.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/ioctl.h>
#include <sys/shm.h>

#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
/* Of the C library's, but in no header of it. */
int capset(struct __user_cap_header_struct *, const struct __user_cap_data_struct *);

enum { FORKS = 2, FORKS_TOGETHER = 6, PAGES = 32 };
static const size_t bytes = PAGES * PAGE, large = 6 * QUARTER;
static atomic_bool stop;
static atomic_int forks_begun;
/* What no call is about; what guards are put into; words, a page each, that the kernel changes; what is
 * sealed in part. */
static unsigned char *still, *guarded, *words, *sealed;

static void verify_still(void) { verify(still, large, 1); }

/* Memory that is mapped: msync(2) says so of no other. */
static bool is_mapped(const unsigned char *page) { return msync((void *)(uintptr_t)page, PAGE, MS_ASYNC) == 0; }

static sigjmp_buf out;
static void on_fault(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}
static bool is_read(const unsigned char *page)
{
    if (sigsetjmp(out, 1) != 0)
        return false;
    (void)*(const volatile unsigned char *)page;
    return true;
}
static bool is_readable(const unsigned char *page)
{
    CHECK(signal(SIGSEGV, on_fault) != SIG_ERR);
    bool is = is_read(page);
    CHECK(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
    return is;
}

/* A page has been written from its first word on up to some word, and is zeros from there. */
static void check_written(const unsigned char *page, uint64_t seed, size_t number)
{
    const uint64_t *word = (const void *)page;
    size_t i = 0;
    while (i < WORDS && word[i] == pattern(seed, number, i))
        i++;
    for (; i < WORDS; i++)
        CHECKF(word[i] == 0, "page %zu holds neither content nor zeros at word %zu", number, i);
}

/* ---- memory ------------------------------------------------------------- */

static bool guards(void)
{
    unsigned char *middle = guarded + bytes / 4;
    if (madvise(middle, bytes / 2, GUARD_INSTALL) == -1)
        return false;
    SYS(madvise(middle, bytes / 2, GUARD_REMOVE));
    fill_from(middle, bytes / 2, 2, PAGES / 4);
    return true;
}
static void check_guards(void)
{
    unsigned char *middle = guarded + bytes / 4;
    size_t readable = 0;
    verify(guarded, bytes / 4, 2);
    verify_from(middle + bytes / 2, bytes / 4, 2, 3 * PAGES / 4);
    for (size_t page = 0; page < PAGES / 2; page++)
        if (is_readable(middle + page * PAGE)) {
            readable++;
            check_written(middle + page * PAGE, 2, PAGES / 4 + page);
        }
    CHECKF(readable == 0 || readable == PAGES / 2, "%zu of %d pages are no guards", readable, PAGES / 2);
    if (readable == 0) {
        SYS(madvise(middle, bytes / 2, GUARD_REMOVE));
        verify_zero(middle, bytes / 2);
    }
}

/* Where nobody else maps anything. */
static unsigned char *const places[2] = {(void *)0x320000000000, (void *)0x330000000000};
static bool leaves_behind(void)
{
    static int from;
    void *to = mremap(places[from], bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, places[!from]);
    if (to == MAP_FAILED) {
        CHECKF(errno == EINVAL, "mremap: %s", strerror(errno));
        return false;
    }
    CHECK(to == places[!from]);
    SYS(munmap(places[from], bytes));
    from = !from;
    return true;
}
static bool holds(const unsigned char *at, uint64_t seed)
{
    const uint64_t *word = (const void *)at;
    for (size_t i = 0; i < PAGES * WORDS; i++)
        if (word[i] != pattern(seed, i / WORDS, i % WORDS))
            return false;
    return true;
}
static void check_left_behind(void)
{
    int here = is_mapped(places[0]) && (!is_mapped(places[1]) || holds(places[0], 3)) ? 0 : 1;
    verify(places[here], bytes, 3);
    if (is_mapped(places[!here]))
        verify_zero(places[!here], bytes);
}

/* Less than is managed by parts, and more. */
static unsigned char *const reserved[2] = {(void *)0x340000000000, (void *)0x350000000000};
static const size_t reserved_bytes[2] = {4 * GIB, 65 * GIB};
static bool reserves(void)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (int i = 0; i < 2; i++) {
        unsigned char *at = reserved[i], *part = at + 2 * GIB;
        if (mmap64(at, reserved_bytes[i], PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0) != at)
            return false;
        SYS(mprotect(part, bytes, PROT_READ | PROT_WRITE));
        fill(part, bytes, 4);
        SYS(munmap(at + 3 * GIB, QUARTER));
        CHECK(mmap(part, bytes, PROT_NONE, flags | MAP_FIXED, -1, 0) == part);
        SYS(munmap(at, reserved_bytes[i]));
    }
    return true;
}
static void check_reserved(void)
{
    for (int i = 0; i < 2; i++)
        for (size_t page = 0; page < PAGES; page++) {
            const unsigned char *at = reserved[i] + 2 * GIB + page * PAGE;
            if (is_readable(at))
                check_written(at, 4, page);
        }
}

/* By a descriptor of this process, and to no effect. */
static bool advises_itself(void)
{
    static int self = -1;
    if (self == -1)
        self = (int)SYS(syscall(SYS_pidfd_open, getpid(), 0));
    const struct iovec part = {still, large};
#if __GLIBC_PREREQ(2, 36)
    return process_madvise(self, &part, 1, MADV_KEEPONFORK, 0) == (ssize_t)large;
#else
    return syscall(SYS_process_madvise, self, &part, 1, MADV_KEEPONFORK, 0) == (ssize_t)large;
#endif
}

/* Shared memory, for a moment in the place of other memory. */
static unsigned char *const attached = (void *)0x360000000000;
static bool attaches(void)
{
    static int segment = -1;
    if (segment == -1) {
        segment = shmget(IPC_PRIVATE, bytes, IPC_CREAT | 0600);
        if (segment == -1)
            return false;
        void *at = shmat(segment, NULL, 0); /* it stays as long as this process */
        SYS(shmctl(segment, IPC_RMID, NULL));
        CHECK(at != (void *)-1);
        fill(at, bytes, 6);
    }
    CHECK(mmap(attached, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
          attached);
    fill(attached, bytes, 5);
    CHECK(shmat(segment, attached, SHM_REMAP) == attached);
    verify(attached, bytes, 6);
    SYS(shmdt(attached));
    return true;
}
static void check_attached(void)
{
    for (size_t page = 0; page < PAGES; page++) {
        const unsigned char *at = attached + page * PAGE;
        const uint64_t *word = (const void *)at;
        if (!is_readable(at))
            continue;
        size_t i = 0;
        while (i < WORDS && word[i] == pattern(6, page, i))
            i++;
        if (i < WORDS)
            check_written(at, 5, page);
    }
}

/* The same again: nothing is sealed that was not. */
static bool seals(void)
{
    unsigned char *middle = sealed + bytes / 2;
    if ((mseal ? mseal(middle, PAGE, 0) : seal(middle, PAGE, true)) == -1)
        return false;
    CHECK(munmap(sealed, bytes) == -1 && errno == EPERM);
    return true;
}
static void check_seals(void)
{
    verify(sealed, bytes, 4);
    CHECK(munmap(sealed, bytes) == -1 && errno == EPERM);
    verify(sealed, bytes, 4);
}

static bool locks(void)
{
    if (mlock(words, PAGE) == -1 || mlock2(words + PAGE, PAGE, MLOCK_ONFAULT) == -1)
        return false;
    if (mlockall(MCL_CURRENT) == -1)
        return false;
    SYS(munlockall());
    return true;
}

static bool allocates(void)
{
    for (size_t size = 3 * MIB / 2; size > 8 * KIB; size /= 12) {
        void *blocks[8] = {malloc(size),        calloc(2, size / 2),  memalign(PAGE, size),
                           valloc(size),        pvalloc(size),        aligned_alloc(64, (size + 63) / 64 * 64),
                           reallocarray(NULL, 2, size / 2)};
        CHECK(posix_memalign(&blocks[7], 64, size) == 0);
        for (int i = 0; i < 8; i++) {
            CHECK(blocks[i] && malloc_usable_size(blocks[i]) >= size - 1);
            memset(blocks[i], 6, 5000);
            unsigned char *block = realloc(blocks[i], 2 * size);
            CHECK(block && block[0] == 6 && block[4999] == 6);
            free(block);
        }
    }
    return true;
}

/* ---- words that the kernel changes -------------------------------------- */

static bool waits(void)
{
    uint32_t *word = (void *)words, *other = (void *)(words + PAGE);
    SYS(syscall(SYS_futex, word, FUTEX_WAKE_OP, 1, (void *)1, other, FUTEX_OP(FUTEX_OP_SET, 7, FUTEX_OP_CMP_EQ, 0)));
    CHECK(__atomic_load_n(other, __ATOMIC_RELAXED) == 7);
    SYS(syscall(SYS_futex, word + 1, FUTEX_LOCK_PI, 0, NULL, NULL, 0));
    SYS(syscall(SYS_futex, word + 1, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0));
    pthread_mutex_t *mutex = (void *)(words + 2 * PAGE);
    for (int i = 0; i < 2; i++) {
        pthread_mutexattr_t kind;
        PTHREAD(pthread_mutexattr_init(&kind));
        if (i == 0)
            PTHREAD(pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST));
        else
            PTHREAD(pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT));
        PTHREAD(pthread_mutex_init(mutex, &kind));
        PTHREAD(pthread_mutex_lock(mutex));
        PTHREAD(pthread_mutex_unlock(mutex));
        PTHREAD(pthread_mutex_destroy(mutex));
        PTHREAD(pthread_mutexattr_destroy(&kind));
    }
    return true;
}

/* A process in the same memory, of whose end a word tells. */
static int borrows(void *ended)
{
    if (ended)
        syscall(SYS_set_tid_address, ended);
    return 0;
}
static bool lends(void)
{
    static char stack[64 * KIB] __attribute__((aligned(64)));
    uint32_t *ended = (void *)(words + 3 * PAGE);
    for (int flags = 0; flags <= CLONE_CHILD_CLEARTID; flags += CLONE_CHILD_CLEARTID) {
        __atomic_store_n(ended, 1, __ATOMIC_RELAXED);
        pid_t other = (pid_t)SYS(clone(borrows, stack + sizeof stack, CLONE_VM | flags | SIGCHLD,
                                       flags ? NULL : ended, NULL, NULL, ended));
        wait_ok(other);
        CHECK(__atomic_load_n(ended, __ATOMIC_RELAXED) == 0);
    }
    return true;
}

static bool controls(void)
{
    static int ends[2] = {-1, -1};
    if (ends[0] == -1)
        SYS(pipe2(ends, O_CLOEXEC));
    int *waiting = (void *)(words + 4 * PAGE);
    SYS(ioctl(ends[0], FIONREAD, waiting));
    CHECK(*waiting == 0);
    return true;
}

/* ---- threads and processes ---------------------------------------------- */

static void *nothing(void *argument) { return argument; }
static bool creates(void)
{
    static void *stack;
    if (!stack)
        stack = map(QUARTER);
    pthread_attr_t attributes;
    PTHREAD(pthread_attr_init(&attributes));
    PTHREAD(pthread_attr_setstack(&attributes, stack, QUARTER));
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        PTHREAD(pthread_create(&thread, i == 0 ? &attributes : NULL, nothing, NULL));
        PTHREAD(pthread_join(thread, NULL));
    }
    PTHREAD(pthread_attr_destroy(&attributes));
    return true;
}

static bool forks(void)
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify_still();
        _Exit(0);
    }
    wait_ok(child);
    return true;
}

static bool forks_past_the_library(void)
{
    for (int i = 0; i < 3; i++) {
        pid_t child = (pid_t)(i == 0   ? SYS(_Fork())
                              : i == 1 ? SYS(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))
#ifdef SYS_fork
                                       : SYS(syscall(SYS_fork)));
#else
                                       : SYS(_Fork()));
#endif
        if (child == 0) {
            verify_still();
            syscall(SYS_exit_group, 0);
        }
        wait_ok(child);
    }
    return true;
}

/* There is no such program: the child goes on. */
static bool executes(void)
{
    static const char path[] = "/nonexistent/program";
    static char *const arguments[] = {"program", NULL};
    pid_t child = vfork();
    if (child == 0) {
        execv(path, arguments);
        execve(path, arguments, environ);
        execvp(path, arguments);
        execvpe(path, arguments, environ);
        execl(path, "program", (char *)NULL);
        execlp(path, "program", (char *)NULL);
        execle(path, "program", (char *)NULL, environ);
        fexecve(-1, arguments, environ);
        execveat(AT_FDCWD, path, arguments, environ, 0);
        syscall(SYS_execve, path, arguments, environ);
        _exit(0);
    }
    CHECKF(child > 0, "vfork: %s", strerror(errno));
    wait_ok(child);
    return true;
}

/* ---- users, rights and namespaces --------------------------------------- */

static bool changes_user(void)
{
    uid_t user = getuid();
    SYS(setuid(user));
    SYS(seteuid(user));
    SYS(setreuid(user, user));
    SYS(setresuid(user, user, user));
    return true;
}

static bool changes_groups(void)
{
    static gid_t list[1024];
    gid_t group = getgid();
    SYS(setgid(group));
    SYS(setegid(group));
    SYS(setregid(group, group));
    SYS(setresgid(group, group, group));
    int count = (int)SYS(getgroups(1024, list));
    return setgroups((size_t)count, list) == 0 && initgroups("root", group) == 0;
}

static bool changes_rights(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    SYS(syscall(SYS_capget, &header, data));
    SYS(capset(&header, data));
    SYS(syscall(SYS_capset, &header, data));
    return true;
}

static bool changes_namespace(void)
{
    static int uts = -1;
    if (uts == -1)
        uts = (int)SYS(open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC));
    SYS(unshare(CLONE_FS | CLONE_FILES));
    /* That is for a process of one thread. */
    CHECK(unshare(CLONE_NEWUSER) == -1 && syscall(SYS_unshare, CLONE_NEWUSER) == -1);
    return setns(uts, CLONE_NEWUTS) == 0 && syscall(SYS_setns, uts, CLONE_NEWUTS) == 0;
}

static bool changes_root(void) { return chroot("/") == 0; }

static bool is_named(void)
{
    char name[16];
    SYS(prctl(PR_SET_NAME, "during-forks", 0, 0, 0));
    SYS(syscall(SYS_prctl, PR_GET_NAME, name, 0, 0, 0));
    CHECK(strcmp(name, "during-forks") == 0);
    return true;
}

/* A filter on system calls that allows all, of a thread that ends then. */
static void *filtered(void *by_number)
{
    struct sock_filter code[] = {OTHERWISE(SECCOMP_RET_ALLOW)};
    struct sock_fprog program = PROGRAM(code);
    bool is_set;
    if (by_number) {
        SYS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        is_set = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
    } else {
        is_set = set_filter(&program);
    }
    verify_still();
    return is_set ? still : NULL;
}
static bool filters(void)
{
    for (uintptr_t by_number = 0; by_number < 2; by_number++) {
        pthread_t thread;
        void *is_set;
        PTHREAD(pthread_create(&thread, NULL, filtered, (void *)by_number));
        PTHREAD(pthread_join(thread, &is_set));
        if (!is_set)
            return false;
    }
    return true;
}

/* ---- one after the other, and together ---------------------------------- */

/* `most`: how often it is made for each fork, if not without a pause: what interrupts all threads would not
 * let one fork, and processes take long. `alone`: what would change what others do. */
static const struct {
    const char *name;
    bool (*make)(void);
    void (*check)(void);
    int most;
    bool alone;
} calls[] = {
    {"madvise(MADV_GUARD_INSTALL)", guards, check_guards, -1, false},
    {"mremap(MREMAP_DONTUNMAP)", leaves_behind, check_left_behind, -1, false},
    {"mmap of 65 GiB", reserves, check_reserved, 8, false},
    {"process_madvise", advises_itself, verify_still, 8, false},
    {"shmat(SHM_REMAP)", attaches, check_attached, 8, false},
    {"mseal", seals, check_seals, -1, false},
    {"malloc", allocates, verify_still, -1, false},
    {"futex", waits, verify_still, -1, false},
    {"clone(CLONE_VM)", lends, verify_still, 1, false},
    {"ioctl", controls, verify_still, -1, false},
    {"pthread_create", creates, verify_still, -1, false},
    {"fork", forks, verify_still, 1, false},
    {"execve", executes, verify_still, 4, false},
    {"setuid", changes_user, verify_still, 2, false},
    {"setgroups", changes_groups, verify_still, 2, false},
    {"capset", changes_rights, verify_still, -1, false},
    {"setns", changes_namespace, verify_still, 8, false},
    {"chroot", changes_root, verify_still, -1, false},
    {"prctl", is_named, verify_still, -1, false},
    {"_Fork", forks_past_the_library, verify_still, 1, true},
    {"mlockall", locks, verify_still, 2, true},
    /* Last: it lasts. */
    {"seccomp", filters, verify_still, 2, true},
};
enum { CALLS = sizeof calls / sizeof *calls };
static atomic_bool refused[CALLS], made[CALLS];

static void *makes(void *number)
{
    size_t call = (uintptr_t)number;
    for (int times = 0, seen = 0; !atomic_load(&stop);) {
        int now = atomic_load(&forks_begun);
        times = now == seen ? times : 0;
        seen = now;
        if (times == calls[call].most) {
            usleep(100);
            continue;
        }
        times++;
        if (!calls[call].make()) {
            atomic_store(&refused[call], true);
            break;
        }
        atomic_store(&made[call], true);
    }
    return NULL;
}

static bool is_among(size_t call, size_t first, size_t last)
{
    return first <= call && call <= last && !atomic_load(&refused[call]) && (first == last || !calls[call].alone);
}

static void fork_while(size_t first, size_t last, int times)
{
    pthread_t threads[CALLS];
    bool is_made[CALLS];
    atomic_store(&stop, false);
    for (size_t i = 0; i < CALLS; i++) {
        is_made[i] = is_among(i, first, last);
        atomic_store(&made[i], false);
        if (is_made[i])
            PTHREAD(pthread_create(&threads[i], NULL, makes, (void *)(uintptr_t)i));
    }
    for (size_t i = 0; i < CALLS; i++)
        while (is_made[i] && !atomic_load(&made[i]) && !atomic_load(&refused[i]))
            usleep(100);
    for (int n = 0; n < times; n++) {
        atomic_fetch_add(&forks_begun, 1);
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            for (int again = 0; again < 2; again++) {
                for (size_t i = 0; i < CALLS; i++)
                    if (is_among(i, first, last))
                        calls[i].check();
                verify_still();
            }
            _exit(0);
        }
        int status;
        while (waitpid(child, &status, 0) == -1)
            CHECKF(errno == EINTR, "waitpid: %s", strerror(errno));
        CHECKF(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s, fork %d: %x",
               first == last ? calls[first].name : "all together", n, (unsigned)status);
    }
    atomic_store(&stop, true);
    for (size_t i = 0; i < CALLS; i++)
        if (is_made[i])
            PTHREAD(pthread_join(threads[i], NULL));
}

int main(void)
{
    still = map(large);
    guarded = map(bytes);
    words = map(64 * KIB);
    fill(still, large, 1);
    sealed = map(bytes);
    fill(guarded, bytes, 2);
    fill(sealed, bytes, 4);
    CHECK(mmap(places[0], bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) ==
          places[0]);
    fill(places[0], bytes, 3);
    churn(); /* managing begins */
    for (int alone = 0; alone < 2; alone++) {
        for (size_t i = 0; i < CALLS; i++)
            if (calls[i].alone == alone) {
                fork_while(i, i, often(FORKS));
                churn();
            }
        if (!alone)
            fork_while(0, CALLS - 1, often(FORKS_TOGETHER));
    }
    verify_still();
    char missing[512] = "";
    for (size_t i = 0; i < CALLS; i++)
        if (atomic_load(&refused[i])) {
            strcat(missing, missing[0] ? ", " : "all is right, but this machine refuses ");
            strcat(missing, calls[i].name);
        }
    if (missing[0])
        skip(missing);
    return 0;
}
