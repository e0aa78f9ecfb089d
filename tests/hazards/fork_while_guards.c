/* Guards (MADV_GUARD_INSTALL) while memory is short and other threads fork: no child finds a page where
 * guards are. Content that was on its way back when they were installed comes too late. */
#include "hazard.h"
#include <setjmp.h>

#define GUARD_INSTALL 102
#define GUARD_REMOVE 103

enum { PAGES = 64, FORKS = 60 };
static const size_t bytes = PAGES * PAGE;
static unsigned char *guarded;
static atomic_bool stop, refused;

static sigjmp_buf out;
static void on_fault(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}
static bool is_readable(const unsigned char *page)
{
    if (sigsetjmp(out, 1) != 0)
        return false;
    (void)*(const volatile unsigned char *)page;
    return true;
}

static void *guards(void *unused)
{
    (void)unused;
    for (size_t i = 0; !atomic_load(&stop); i++) {
        if (madvise(guarded, bytes, GUARD_INSTALL) == -1) {
            atomic_store(&refused, true);
            break;
        }
        if (i % 4 == 0)
            usleep(200);
        SYS(madvise(guarded, bytes, GUARD_REMOVE));
        /* Not to the end: what comes ahead of a walk is on its way then. */
        fill(guarded, (i * 7 % PAGES + 1) * PAGE, 2);
    }
    return NULL;
}

/* All are guards or none is; what is there is new content, as far as it was written. */
static void check(void)
{
    size_t readable = 0;
    CHECK(signal(SIGSEGV, on_fault) != SIG_ERR);
    for (size_t page = 0; page < PAGES; page++) {
        const uint64_t *word = (const void *)(guarded + page * PAGE);
        if (!is_readable(guarded + page * PAGE))
            continue;
        readable++;
        size_t i = 0;
        while (i < WORDS && word[i] == pattern(2, page, i))
            i++;
        for (; i < WORDS; i++)
            CHECKF(word[i] == 0, "page %zu holds neither content nor zeros at word %zu", page, i);
    }
    CHECK(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
    CHECKF(readable == 0 || readable == PAGES, "%zu of %d pages are no guards", readable, PAGES);
}

int main(void)
{
    guarded = map(bytes);
    fill(guarded, bytes, 2);
    unsigned char *still = map(2 * QUARTER);
    fill(still, 2 * QUARTER, 1);
    churn(); /* managing begins */
    struct churner churner;
    churner_start(&churner);
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, guards, NULL));
    for (int n = 0; n < often(FORKS) && !atomic_load(&refused); n++) {
        pid_t child = (pid_t)SYS(n % 3 == 2 ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork());
        if (child == 0) {
            check();
            verify(still, 2 * QUARTER, 1);
            _exit(0);
        }
        wait_ok(child);
    }
    atomic_store(&stop, true);
    PTHREAD(pthread_join(thread, NULL));
    churner_stop(&churner);
    if (atomic_load(&refused))
        skip("this kernel has no MADV_GUARD_INSTALL");
    fill(guarded, bytes, 2);
    verify(guarded, bytes, 2);
    verify(still, 2 * QUARTER, 1);
    return 0;
}
