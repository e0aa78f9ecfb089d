/* A thread moves memory to and fro while another forks: a child must find its content where its own
 * mappings say, whichever came first. */
#include "hazard.h"

enum { FORKS = 12 };
static const size_t bytes = QUARTER;
static unsigned char *places[2];
static atomic_bool go, stop;

static void *mover(void *unused)
{
    (void)unused;
    while (!atomic_load(&go))
        sched_yield();
    for (int from = 0; !atomic_load(&stop); from = !from) {
        void *to = mremap(places[from], bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, places[!from]);
        CHECKF(to == places[!from], "mremap: %s", strerror(errno));
    }
    return NULL;
}

/* Memory that is mapped here: msync(2) says so of no other. */
static bool is_mapped(void *at)
{
    return msync(at, PAGE, MS_ASYNC) == 0;
}

int main(void)
{
    places[0] = map(bytes);
    fill(places[0], bytes, 1);
    churn(); /* managing begins */
    churn();
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, mover, NULL));
    places[1] = map(4 * bytes); /* an address, which nobody else takes from here on */
    SYS(munmap(places[1], 4 * bytes));
    atomic_store(&go, true);
    for (int i = 0; i < often(FORKS); i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            unsigned char *at = is_mapped(places[0]) ? places[0] : places[1];
            CHECK(is_mapped(at));
            verify(at, bytes, 1);
            _exit(0);
        }
        wait_ok(child);
    }
    atomic_store(&stop, true);
    PTHREAD(pthread_join(thread, NULL));
    unsigned char *at = is_mapped(places[0]) ? places[0] : places[1];
    verify(at, bytes, 1);
    return 0;
}
