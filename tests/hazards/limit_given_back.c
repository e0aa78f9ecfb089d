/* A limit that leaves the program what it needs and not what managing takes as well: it gets all
 * that it would get without, in whichever way it asks, from several threads, beside forks. */
#include "hazard.h"
#include <pthread.h>
#include <sys/resource.h>

/* Of the address space the libraries take some, too. */
static const size_t limit = 96 * MIB;
enum { PIECE = 1 << 20, PIECES = 84, THREADS = 3 };
static unsigned char *pieces[PIECES];
static int next;

enum way { BY_MMAP, BY_MALLOC, BY_SMALL_BLOCKS, BY_MPROTECT };

/* A list of blocks, each with the one before in its first word. */
static unsigned char *small_blocks(size_t bytes, uint64_t seed)
{
    const size_t block = 64 << 10;
    unsigned char *last = NULL;
    for (size_t at = 0; at + block <= bytes; at += block) {
        unsigned char *new = malloc(block - 64);
        CHECKF(new, "after %zu of %zu bytes", at, bytes);
        memcpy(new, &last, sizeof last);
        memset(new + sizeof last, (int)seed, block - 64 - sizeof last);
        last = new;
    }
    return last;
}

static unsigned char *piece(enum way way, int number)
{
    unsigned char *at;
    if (way == BY_MALLOC) {
        at = malloc(PIECE);
        CHECKF(at, "block %d", number);
    } else if (way == BY_SMALL_BLOCKS) {
        return small_blocks(PIECE, (uint64_t)number);
    } else {
        int access = way == BY_MPROTECT ? PROT_NONE : PROT_READ | PROT_WRITE;
        at = mmap(NULL, PIECE, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECKF(at != MAP_FAILED, "mapping %d: %s", number, strerror(errno));
        if (way == BY_MPROTECT)
            CHECKF(mprotect(at, PIECE, PROT_READ | PROT_WRITE) == 0, "mapping %d: %s", number, strerror(errno));
    }
    fill(at, PIECE, (uint64_t)number);
    return at;
}

static void check(enum way way, int number)
{
    unsigned char *at = pieces[number];
    if (way != BY_SMALL_BLOCKS) {
        verify(at, PIECE, (uint64_t)number);
        return;
    }
    while (at) {
        unsigned char *before;
        memcpy(&before, at, sizeof before);
        CHECK(at[sizeof before] == (unsigned char)number && at[1000] == (unsigned char)number);
        at = before;
    }
}

static void *take(void *argument)
{
    enum way way = *(enum way *)argument;
    int number;
    while ((number = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < PIECES)
        __atomic_store_n(&pieces[number], piece(way, number), __ATOMIC_RELEASE);
    return NULL;
}

static void run(int what, enum way way, int threads)
{
    struct rlimit most = {limit, limit};
    SYS(setrlimit(what, &most));
    pthread_t others[THREADS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int i = 0; i < threads; i++)
        CHECK(pthread_create(&others[i], &small, take, &way) == 0);
    if (threads == 0)
        take(&way);
    while (__atomic_load_n(&next, __ATOMIC_RELAXED) < PIECES) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            for (int i = 0; i < PIECES; i += 16)
                if (__atomic_load_n(&pieces[i], __ATOMIC_ACQUIRE))
                    check(way, i);
            _exit(0);
        }
        wait_ok(child);
    }
    for (int i = 0; i < threads; i++)
        pthread_join(others[i], NULL);
    for (int i = 0; i < PIECES; i++)
        check(way, i);
    _exit(0);
}

int main(void)
{
    static const struct {
        int what;
        enum way way;
        int threads;
    } all[] = {
        {RLIMIT_DATA, BY_MMAP, 0},        {RLIMIT_DATA, BY_MMAP, THREADS}, {RLIMIT_DATA, BY_MALLOC, 0},
        {RLIMIT_DATA, BY_SMALL_BLOCKS, 0}, {RLIMIT_DATA, BY_MPROTECT, 0},  {RLIMIT_AS, BY_MMAP, 0},
        {RLIMIT_AS, BY_MALLOC, 0},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0)
            run(all[i].what, all[i].way, all[i].threads);
        int status;
        SYS(waitpid(child, &status, 0));
        CHECKF(WIFEXITED(status) && WEXITSTATUS(status) == 0, "case %zu: %x", i, (unsigned)status);
    }
    return 0;
}
