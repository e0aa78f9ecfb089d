/* What every hazard program shares.
 *
 * A hazard program does one dangerous thing with ordinary memory and checks
 * what plain Linux promises. It exits 0 when the promise was kept, 1 after one
 * line on standard error when it was not, 77 after one line when this machine
 * cannot show the hazard, 78 for a known limit. It knows nothing of Terrace: run plainly it must
 * pass too, so that Linux itself is the oracle.
 *
 * Under Terrace the runner gives it a budget far below the memory it uses, and
 * churn() sweeps over other memory so that whatever the program held before is
 * absent when the hazard strikes.
 */
#ifndef HAZARD_H
#define HAZARD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))
#define KIB (1ul << 10)
#define MIB (1ul << 20)
#define GIB (1ul << 30)
/* The runner gives a budget of 1 MiB; most sizes are counted in quarters of it.
 * Small, because the suite is repeated a hundred times; several times the
 * budget all the same. */
#define QUARTER (256 * KIB)

/* ---- saying what went wrong ------------------------------------------- */

/* Only write(2) and the stack: usable in handlers and in forked children. */
__attribute__((format(printf, 3, 4), noreturn)) static inline void
fail_at(const char *file, int line, const char *format, ...)
{
    char text[512];
    int saved = errno;
    int n = snprintf(text, sizeof text, "%s:%d: ", file, line);
    va_list args;
    va_start(args, format);
    n += vsnprintf(text + n, sizeof text - (size_t)n, format, args);
    va_end(args);
    if (n > (int)sizeof text - 40)
        n = (int)sizeof text - 40;
    n += snprintf(text + n, sizeof text - (size_t)n, " (errno %d)\n", saved);
    ssize_t ignored = write(STDERR_FILENO, text, (size_t)n);
    (void)ignored;
    _exit(1);
}

#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition))                                                      \
            FAIL("not true: %s", #condition);                                  \
    } while (0)
#define CHECKF(condition, ...)                                                 \
    do {                                                                       \
        if (!(condition))                                                      \
            FAIL(__VA_ARGS__);                                                 \
    } while (0)
/* A system call that must not return -1. Evaluates to its result. */
#define SYS(call)                                                              \
    __extension__({                                                            \
        errno = 0;                                                             \
        long result_ = (long)(call);                                           \
        if (result_ == -1)                                                     \
            FAIL("%s: %s", #call, strerror(errno));                            \
        result_;                                                               \
    })
/* A pthread call that must return 0. */
#define PTHREAD(call)                                                          \
    do {                                                                       \
        int error_ = (call);                                                   \
        if (error_)                                                            \
            FAIL("%s: %s", #call, strerror(error_));                           \
    } while (0)

/* This machine cannot show the hazard. */
__attribute__((noreturn)) static inline void skip(const char *reason)
{
    fprintf(stderr, "skip: %s\n", reason);
    fflush(stderr);
    _exit(77);
}

/* Bytes that are mapped, as the kernel counts them against RLIMIT_AS. */
static inline size_t address_space(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file);
    unsigned long pages;
    CHECK(fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages * PAGE;
}

/* A figure of /proc/self/status that is in KiB, in bytes. */
static inline size_t status_bytes(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file);
    char line[256];
    size_t kib = 0, length = strlen(name);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && sscanf(line + length, ": %zu", &kib) == 1)
            break;
    fclose(file);
    return kib * KIB;
}

/* Bytes of a process that are neither a file's nor shared. */
static inline size_t anonymous(void)
{
    return status_bytes("RssAnon");
}

/* Whether the runner started this program under Terrace. Only for asking more
 * of a managed run than Linux promises, never for asking less. */
static inline bool is_managed(void)
{
    return getenv("HAZARD_MANAGED") != NULL;
}

/* Whether what is compressed goes to a file there, so that it takes no memory. */
static inline bool is_spilled(void)
{
    return getenv("HAZARD_SPILLED") != NULL;
}

/* The kernel gives an error, or nothing, where plain memory would work: a known
 * limit of memory that a program in user space manages. The runner lists these
 * apart. Wrong content is never a limit. Run plainly this is a failure. */
__attribute__((noreturn)) static inline void known_limit(const char *what)
{
    if (!is_managed())
        FAIL("%s", what);
    fprintf(stderr, "limit: %s\n", what);
    fflush(stderr);
    _exit(78);
}

/* How often a program does what it shows: as often as usual, or HAZARD_TIMES times that. One process that
 * does it many times takes less than half as long as many processes. */
static inline int often(int usual)
{
    const char *text = getenv("HAZARD_TIMES");
    int factor = text ? atoi(text) : 1;
    CHECKF(factor > 0, "HAZARD_TIMES: `%s` is not a number of times", text);
    return usual * factor;
}

/* ---- patterns ---------------------------------------------------------- */

static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Word `index` of page `page`. The page decides its kind, so that a buffer
 * holds zero, same-filled, compressible and incompressible pages side by side. */
static inline uint64_t pattern(uint64_t seed, uint64_t page, uint64_t index)
{
    uint64_t base = mix(seed * 0x10001 + page);
    switch (base % 8) {
    case 0:
        return 0;
    case 1:
        return base;
    case 2:
    case 3:
        return base + index; /* counters */
    case 4:
    case 5:
        return index % 8 ? base >> 40 : base ^ (index << 20); /* sparse heap */
    case 6:
        return 0x2020202020202020ull | (mix(base + index / 4) & 0x0f0f0f0f0f0f0f0full);
    default:
        return mix(base + index); /* incompressible */
    }
}

/* Fills pages `first`.. of a pattern into memory at `at`. */
static inline void fill_from(void *at, size_t bytes, uint64_t seed, size_t first)
{
    uint64_t *words = at;
    for (size_t page = 0; page < bytes / PAGE; page++)
        for (size_t i = 0; i < WORDS; i++)
            words[page * WORDS + i] = pattern(seed, first + page, i);
}

static inline void verify_from_at(const char *file, int line, const void *at, size_t bytes,
                                  uint64_t seed, size_t first)
{
    const uint64_t *words = at;
    for (size_t page = 0; page < bytes / PAGE; page++)
        for (size_t i = 0; i < WORDS; i++) {
            uint64_t got = words[page * WORDS + i];
            uint64_t want = pattern(seed, first + page, i);
            if (got != want) {
                size_t wrong = 0, zero = 0;
                for (size_t j = 0; j < WORDS; j++) {
                    wrong += words[page * WORDS + j] != pattern(seed, first + page, j);
                    zero += words[page * WORDS + j] == 0;
                }
                fail_at(file, line,
                        "wrong content at %p (page %zu of %zu, word %zu): %#llx, expected %#llx; "
                        "%zu of the page's 512 words are wrong, %zu are zero",
                        (const void *)&words[page * WORDS + i], page, bytes / PAGE, i,
                        (unsigned long long)got, (unsigned long long)want, wrong, zero);
            }
        }
}

static inline void verify_zero_at(const char *file, int line, const void *at, size_t bytes)
{
    const uint64_t *words = at;
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        if (words[i] != 0)
            fail_at(file, line, "not zero at %p (offset %#zx of %#zx): %#llx",
                    (const void *)&words[i], i * sizeof *words, bytes,
                    (unsigned long long)words[i]);
}

#define fill(at, bytes, seed) fill_from(at, bytes, seed, 0)
#define verify_from(at, bytes, seed, first)                                    \
    verify_from_at(__FILE__, __LINE__, at, bytes, seed, first)
#define verify(at, bytes, seed) verify_from(at, bytes, seed, 0)
#define verify_zero(at, bytes) verify_zero_at(__FILE__, __LINE__, at, bytes)

/* Bytes of a pattern, for buffers that are no whole number of pages. */
static inline unsigned char pattern_byte(uint64_t seed, size_t offset)
{
    return (unsigned char)(pattern(seed, offset / PAGE, offset % PAGE / 8) >> (offset % 8 * 8));
}
static inline void fill_bytes(void *at, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)at)[i] = pattern_byte(seed, i);
}
#define verify_bytes(at, bytes, seed)                                          \
    do {                                                                       \
        const unsigned char *bytes_ = (const void *)(at);                      \
        for (size_t i_ = 0; i_ < (size_t)(bytes); i_++)                        \
            CHECKF(bytes_[i_] == pattern_byte(seed, i_),                       \
                   "%s: byte %zu of %zu is %#x, expected %#x", #at, i_,        \
                   (size_t)(bytes), bytes_[i_], pattern_byte(seed, i_));       \
    } while (0)

/* ---- memory ------------------------------------------------------------ */

static inline void *map_with(size_t bytes, int flags)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    CHECKF(at != MAP_FAILED, "mmap of %zu bytes: %s", bytes, strerror(errno));
    return at;
}

/* Fresh anonymous private memory. */
static inline void *map(size_t bytes)
{
    return map_with(bytes, 0);
}

/* Larger than any budget the runner gives, by enough that a sweep leaves
 * nothing else resident. */
#define CHURN_BYTES (8 * QUARTER)
static _Atomic(uint64_t *) churn_memory;

/* Sweeps over other memory, reading and dirtying it, so that everything the
 * program touched before becomes the coldest. Any number of threads at once. */
static inline void churn(void)
{
    uint64_t *words = atomic_load(&churn_memory);
    if (!words) {
        uint64_t *fresh = map(CHURN_BYTES);
        if (atomic_compare_exchange_strong(&churn_memory, &words, fresh))
            words = fresh;
        else
            munmap(fresh, CHURN_BYTES);
        /* Mostly same-filled: eviction should cost little, there is much of it. */
        for (size_t page = 0; page < CHURN_BYTES / PAGE; page++)
            if (page % 16 == 7)
                fill_from(words + page * WORDS, PAGE, 99, page);
            else
                for (size_t i = 0; i < WORDS; i++)
                    __atomic_store_n(&words[page * WORDS + i], page, __ATOMIC_RELAXED);
        return;
    }
    for (size_t page = 0; page < CHURN_BYTES / PAGE; page++)
        __atomic_fetch_add(&words[page * WORDS], 0, __ATOMIC_RELAXED);
}

/* A thread that churns until told to stop: eviction during the hazard. */
struct churner {
    pthread_t thread;
    atomic_bool stop;
    atomic_ulong sweeps;
};
static inline void *churner_main(void *argument)
{
    struct churner *churner = argument;
    while (!atomic_load(&churner->stop)) {
        churn();
        atomic_fetch_add(&churner->sweeps, 1);
    }
    return NULL;
}
static inline void churner_start(struct churner *churner)
{
    atomic_store(&churner->stop, false);
    atomic_store(&churner->sweeps, 0);
    PTHREAD(pthread_create(&churner->thread, NULL, churner_main, churner));
    /* A hazard that is over before the first sweep would show nothing. */
    while (atomic_load(&churner->sweeps) == 0)
        sched_yield();
}
static inline void churner_stop(struct churner *churner)
{
    atomic_store(&churner->stop, true);
    PTHREAD(pthread_join(churner->thread, NULL));
}

/* Pages of a range that are mapped by this process right now. */
static inline size_t present_pages(const void *at, size_t bytes)
{
    int fd = (int)SYS(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    size_t present = 0;
    for (size_t page = 0; page < bytes / PAGE; page++) {
        uint64_t entry;
        off_t offset = (off_t)(((uintptr_t)at / PAGE + page) * sizeof entry);
        CHECK(SYS(pread(fd, &entry, sizeof entry, offset)) == sizeof entry);
        present += entry >> 63;
    }
    SYS(close(fd));
    return present;
}

/* ---- processes and files ----------------------------------------------- */

/* Waits for a child that must exit with `status`. */
#define wait_exit(pid, wanted)                                                 \
    do {                                                                       \
        int status_;                                                           \
        pid_t waited_;                                                         \
        do                                                                     \
            waited_ = waitpid(pid, &status_, 0);                               \
        while (waited_ == -1 && errno == EINTR);                               \
        CHECKF(waited_ == (pid), "waitpid: %s", strerror(errno));              \
        CHECKF(WIFEXITED(status_) && WEXITSTATUS(status_) == (wanted),         \
               "child %s %d, expected exit status %d",                         \
               WIFEXITED(status_) ? "exited with" : "died of signal",          \
               WIFEXITED(status_) ? WEXITSTATUS(status_) : WTERMSIG(status_),  \
               wanted);                                                        \
    } while (0)
#define wait_ok(pid) wait_exit(pid, 0)

/* Waits for a child that must die of `signal`. */
#define wait_signal(pid, wanted)                                               \
    do {                                                                       \
        int status_;                                                           \
        CHECKF(waitpid(pid, &status_, 0) == (pid), "waitpid: %s", strerror(errno)); \
        CHECKF(WIFSIGNALED(status_) && WTERMSIG(status_) == (wanted),          \
               "child %s %d, expected death by signal %d",                     \
               WIFEXITED(status_) ? "exited with" : "died of signal",          \
               WIFEXITED(status_) ? WEXITSTATUS(status_) : WTERMSIG(status_),  \
               wanted);                                                        \
    } while (0)

/* An unlinked file in the current directory, which the runner makes for us. */
static inline int temp_file_with(int flags)
{
    char name[64];
    static atomic_int counter;
    snprintf(name, sizeof name, "hazard-%d-%d.tmp", (int)getpid(), atomic_fetch_add(&counter, 1));
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flags, 0600);
    if (fd == -1 && errno == EINVAL && flags & O_DIRECT) {
        unlink(name);
        skip("this filesystem refuses O_DIRECT");
    }
    CHECKF(fd != -1, "open %s: %s", name, strerror(errno));
    SYS(unlink(name));
    return fd;
}
static inline int temp_file(void)
{
    return temp_file_with(0);
}

/* Writes or reads everything, as the whole-buffer calls of a program would. */
#define write_all(fd, at, bytes) CHECK(SYS(write(fd, at, bytes)) == (long)(bytes))
#define read_all(fd, at, bytes) CHECK(SYS(read(fd, at, bytes)) == (long)(bytes))

#endif
