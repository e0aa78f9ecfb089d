/* A program whose hot set lies on the slow node.
 *
 *   hotset read|write TOTAL-MIB HOT-MIB COLD-FAST-MIB [huge]
 *
 * The first COLD-FAST-MIB lie on node 0 and are never used again; the rest
 * lies on node 1, or the one in SLOW_NODE. A third of the way into the rest begins the hot set, which
 * is used without pause; with `huge` in huge pages, else in small ones. Every page has content that follows from its number.
 * On SIGUSR1 the program says where its pages lie (one line, numbers of pages);
 * on SIGTERM it does so, stops, verifies all content, and exits with 0 if it is
 * intact. */

#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, MPOL_DEFAULT = 0, MPOL_BIND = 2 };

static volatile sig_atomic_t stopped, asked;

static void note(int signal) {
    if (signal == SIGTERM)
        stopped = 1;
    else
        asked = 1;
}

static void bind_to(void *at, size_t length, int node) {
    unsigned long mask = 1UL << (node < 0 ? 0 : node);
    long r = node < 0 ? syscall(SYS_mbind, at, length, MPOL_DEFAULT, NULL, 0UL, 0)
                      : syscall(SYS_mbind, at, length, MPOL_BIND, &mask, 64UL, 0);
    if (r != 0) {
        perror("hotset: mbind");
        exit(1);
    }
}

/* What word `i` of page `page` holds before anybody has used it. */
static uint64_t content(size_t page, size_t i) {
    uint64_t x = page * 0x9e3779b97f4a7c15u + i / 16;
    return x ^ (x >> 31);
}

static void count(const char *what, char *at, size_t first, size_t pages) {
    enum { BATCH = 512 };
    size_t on[2] = {0, 0}, absent = 0, other = 0;
    for (size_t done = 0; done < pages;) {
        void *addresses[BATCH];
        int status[BATCH];
        size_t batch = pages - done < BATCH ? pages - done : BATCH;
        for (size_t i = 0; i < batch; i++)
            addresses[i] = at + (first + done + i) * PAGE;
        if (syscall(SYS_move_pages, 0, batch, addresses, NULL, status, 0) != 0) {
            perror("hotset: move_pages");
            exit(1);
        }
        for (size_t i = 0; i < batch; i++) {
            if (status[i] == 0 || status[i] == 1)
                on[status[i]]++;
            else if (status[i] < 0)
                absent++;
            else
                other++;
        }
        done += batch;
    }
    printf(" %s node0=%zu node1=%zu absent=%zu other=%zu", what, on[0], on[1], absent, other);
}

int main(int argc, char **argv) {
    if (argc < 5 || argc > 6) {
        fprintf(stderr, "usage: hotset read|write TOTAL-MIB HOT-MIB COLD-FAST-MIB [huge]\n");
        return 2;
    }
    int writes = strcmp(argv[1], "write") == 0;
    size_t pages = strtoul(argv[2], NULL, 10) << 8, hot = strtoul(argv[3], NULL, 10) << 8,
           fast = strtoul(argv[4], NULL, 10) << 8;
    const char *slow = getenv("SLOW_NODE");
    size_t begin = fast + (pages - fast) / 3;
    size_t huge = 2 << 20;
    char *at = mmap(NULL, pages * PAGE + huge, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || begin + hot > pages) {
        fprintf(stderr, "hotset: cannot have that\n");
        return 1;
    }
    at += (huge - (uintptr_t)at % huge) % huge;
    madvise(at, pages * PAGE, argc == 6 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (fast > 0)
        bind_to(at, fast * PAGE, 0);
    bind_to(at + fast * PAGE, (pages - fast) * PAGE, slow ? atoi(slow) : 1);
    for (size_t page = 0; page < pages; page++)
        for (size_t i = 0; i < WORDS; i++)
            ((uint64_t *)(at + page * PAGE))[i] = content(page, i);
    /* From here on the pages may lie anywhere. */
    bind_to(at, pages * PAGE, -1);

    signal(SIGTERM, note);
    signal(SIGUSR1, note);
    puts("ready");
    fflush(stdout);

    uint64_t rounds = 0, sum = 0;
    for (;;) {
        int last = stopped;
        if (last || asked) {
            asked = 0;
            printf("rounds=%llu sum=%llx", (unsigned long long)rounds, (unsigned long long)sum);
            count("hot", at, begin, hot);
            count("cold-fast", at, 0, fast);
            count("cold-before", at, fast, begin - fast);
            count("cold-after", at, begin + hot, pages - begin - hot);
            putchar('\n');
            fflush(stdout);
        }
        if (last)
            break;
        for (size_t page = begin; page < begin + hot; page++) {
            volatile uint64_t *words = (uint64_t *)(at + page * PAGE);
            if (writes)
                words[0]++;
            sum += words[rounds % WORDS];
        }
        rounds++;
    }

    for (size_t page = 0; page < pages; page++)
        for (size_t i = 0; i < WORDS; i++) {
            int used = writes && i == 0 && page >= begin && page < begin + hot;
            uint64_t expected = content(page, i) + (used ? rounds : 0);
            if (((uint64_t *)(at + page * PAGE))[i] != expected) {
                printf("content WRONG at page %zu word %zu\n", page, i);
                return 1;
            }
        }
    puts("content intact");
    return 0;
}
