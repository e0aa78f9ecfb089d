/* Small pieces of other memory lie in the midst of a large mapping, where parts of it were before,
 * and other parts of it move to and fro while the program forks. The pieces must keep their content
 * in the parent, and each child must have it. */
#include "hazard.h"

enum { GROUPS = 64, FORKS = 3 };
static const size_t group = 4 * PAGE;
static unsigned char *memory, *aside;
static atomic_bool stop;

static unsigned char *at(size_t number) { return memory + number * group; }

static void moves(unsigned char *from, unsigned char *to)
{
    void *got = mremap(from, group, group, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    CHECKF(got == to, "mremap: %s", strerror(errno));
}

/* Every fourth group, so that something has moved whenever a fork is over. */
static void *mover(void *unused)
{
    (void)unused;
    for (size_t i = 0; !atomic_load(&stop); i = (i + 4) % GROUPS) {
        moves(at(i), aside);
        moves(aside, at(i));
    }
    return NULL;
}

/* Another fourth is replaced time and again, and written at once. */
static void *replacer(void *unused)
{
    (void)unused;
    for (size_t i = 1; !atomic_load(&stop); i = (i + 4) % GROUPS) {
        if (i % 8 == 1) {
            void *got = mmap(at(i), group, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
            CHECKF(got == at(i), "mmap: %s", strerror(errno));
        } else {
            SYS(munmap(at(i), group));
            void *got = mmap(at(i), group, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            CHECKF(got == at(i), "mmap: %s", strerror(errno));
        }
        fill_from(at(i), group, 3, 4 * i);
    }
    return NULL;
}

static void verify_pieces(void)
{
    for (size_t i = 2; i < GROUPS; i += 4)
        verify_from(at(i), group, 2, 4 * i);
}

int main(void)
{
    memory = map(GROUPS * group);
    aside = map(GROUPS * group);
    fill(memory, GROUPS * group, 3);
    churn(); /* managing begins */
    churn();
    for (size_t i = 2; i < GROUPS; i += 4) {
        CHECK(mmap(at(i), group, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at(i));
        fill_from(at(i), group, 2, 4 * i);
    }
    pthread_t threads[2];
    PTHREAD(pthread_create(&threads[0], NULL, mover, NULL));
    PTHREAD(pthread_create(&threads[1], NULL, replacer, NULL));
    for (int i = 0; i < FORKS; i++) {
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            verify_pieces();
            churn();
            verify_pieces();
            _exit(0);
        }
        wait_ok(child);
        churn();
        verify_pieces();
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        PTHREAD(pthread_join(threads[i], NULL));
    churn();
    verify_pieces();
    for (size_t i = 0; i < GROUPS; i++)
        if (i % 4 != 2)
            verify_from(at(i), group, 3, 4 * i);
    return 0;
}
