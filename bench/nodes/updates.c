/* Updates at random in a hot set that begins on the slow node, and moves once.
 *
 *   updates TOTAL-MIB FAST-MIB HOT-MIB together|scattered write|read UPDATES SEED
 *
 * The first FAST-MIB are filled on node 0, the rest on node 1; from then on pages may lie
 * anywhere. Then the program says `ready` and waits for a line. Of ten
 * accesses nine go to random words of the hot set and one to the next cache line of a
 * sweep over everything. The hot set, in the second half of the arena, is one range
 * (`together`) or every third page (`scattered`); after 4 x UPDATES another takes its
 * place, none of whose pages was hot before, and as many updates follow.
 *
 * At the beginning and after 1, 2 and 4 x UPDATES of each half it says how many of the
 * pages that are hot lie on which node, how many of all pages are on another one than at
 * the mark before, and the number of the ring by which the
 * emulator's plugin knows this mark. In the end all content is verified by its sum. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "arena.h"

enum { MPOL_DEFAULT = 0, MPOL_BIND = 2 };
enum { PAGE = 4096, WORDS = PAGE / 8, LINE = 8, HOT_OF_TEN = 9 };

/* Rounds of arithmetic between two accesses. An emulator's memory takes no time: these
 * stand for it, so that there are as many accesses in a second of the guest's as a
 * processor makes that waits for memory (some 3 million). */
enum { PAUSE = 12 };

static uint64_t *arena;
static volatile uint64_t *bell;
static unsigned rings;

static void *map(uint64_t at, size_t length) {
    void *got = mmap((void *)at, length, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != (void *)at) {
        perror("updates: mmap");
        exit(1);
    }
    return got;
}

/* Binds pages to a node, or to none. */
static void bind_to(void *at, size_t length, int node) {
    unsigned long mask = node < 0 ? 0 : 1UL << node;
    int mode = node < 0 ? MPOL_DEFAULT : MPOL_BIND;
    if (length > 0 && syscall(SYS_mbind, at, length, mode, node < 0 ? NULL : &mask, 64UL, 0) != 0) {
        perror("updates: mbind");
        exit(1);
    }
}

/* Where each page was at the mark before, and how many are elsewhere now. */
static signed char *lay;

static size_t look(size_t pages) {
    enum { BATCH = 512 };
    size_t elsewhere = 0;
    for (size_t done = 0; done < pages;) {
        void *addresses[BATCH];
        int status[BATCH];
        size_t batch = pages - done < BATCH ? pages - done : BATCH;
        for (size_t i = 0; i < batch; i++)
            addresses[i] = arena + (done + i) * WORDS;
        if (syscall(SYS_move_pages, 0, batch, addresses, NULL, status, 0) != 0) {
            perror("updates: move_pages");
            exit(1);
        }
        for (size_t i = 0; i < batch; i++) {
            elsewhere += lay[done + i] != status[i];
            lay[done + i] = (signed char)status[i];
        }
        done += batch;
    }
    return elsewhere;
}

/* Says where the hot pages lie, and which mark this is. */
static void mark(int half, int reached, const uint32_t *hot, size_t hot_pages, size_t pages) {
    size_t on[2] = {0, 0}, elsewhere = look(pages);
    for (size_t i = 0; i < hot_pages; i++)
        if (lay[hot[i]] == 0 || lay[hot[i]] == 1)
            on[(int)lay[hot[i]]]++;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *bell = rings;
    printf("MARK ring=%u half=%d at=%d node0=%zu node1=%zu elsewhere=%zu ms=%lld\n", rings++,
           half, reached, on[0], on[1], elsewhere, now.tv_sec * 1000LL + now.tv_nsec / 1000000);
    fflush(stdout);
}

/* An emulator keeps every translation until it is told to forget it; a processor has some 2048
 * (its second-level TLB), which this program's random accesses replace within as many updates.
 * Without that no page looks as if it were used, to the kernel's LRU and to DAMON: the
 * processor notes in the page table that a page is used when it looks it up there. */
enum { TURNOVER = 2048 };
static volatile char *turned;

/* Has the processor look up every page again. The guest's kernel has been told to drop all
 * translations where it would have dropped two. */
static void forget_translations(void) {
    if (mprotect((void *)turned, 2 * PAGE, PROT_READ) != 0 ||
        mprotect((void *)turned, 2 * PAGE, PROT_READ | PROT_WRITE) != 0) {
        perror("updates: mprotect");
        exit(1);
    }
    /* Who tracks stores leaves the pages write-protected, and the next time nothing would be
     * dropped. */
    turned[0]++;
    turned[PAGE]++;
}

static uint64_t word(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

int main(int argc, char **argv) {
    if (argc != 8) {
        fprintf(stderr, "usage: updates TOTAL-MIB FAST-MIB HOT-MIB together|scattered "
                        "write|read UPDATES SEED\n");
        return 2;
    }
    size_t pages = strtoul(argv[1], NULL, 10) << 8, fast = strtoul(argv[2], NULL, 10) << 8,
           hot_pages = strtoul(argv[3], NULL, 10) << 8;
    int scattered = strcmp(argv[4], "scattered") == 0, writes = strcmp(argv[5], "write") == 0;
    uint64_t updates = strtoull(argv[6], NULL, 10);
    uint64_t random = strtoull(argv[7], NULL, 10) * 0x9e3779b97f4a7c15u | 1;
    size_t stride = scattered ? 3 : 1, begin = pages / 2;
    /* Two sets: side by side, or one between the pages of the other. */
    size_t reach = scattered ? hot_pages * stride : 2 * hot_pages;
    if (pages * PAGE > ARENA_MOST || hot_pages == 0 || begin + reach > pages || fast > begin ||
        updates == 0) {
        fprintf(stderr, "updates: cannot have that\n");
        return 2;
    }
    bell = map(BELL, PAGE);
    turned = map(BELL + 16 * PAGE, 2 * PAGE);
    turned[0] = turned[PAGE] = 1;
    arena = map(ARENA, pages * PAGE);
    bind_to(arena, fast * PAGE, 0);
    bind_to(arena + fast * WORDS, (pages - fast) * PAGE, 1);
    uint64_t sum = 0;
    for (size_t i = 0; i < pages * WORDS; i++)
        sum += arena[i] = i * 0x9e3779b97f4a7c15u;
    bind_to(arena, pages * PAGE, -1);
    uint32_t *hot = malloc(hot_pages * sizeof *hot);
    lay = malloc(pages);
    if (hot == NULL || lay == NULL)
        return 1;
    look(pages);

    puts("ready");
    fflush(stdout);
    if (getchar() == EOF)
        return 1;

    uint64_t read = 0, done = 0, swept = 0;
    volatile uint64_t work = 1;
    for (int half = 0; half < 2; half++) {
        for (size_t i = 0; i < hot_pages; i++)
            hot[i] = begin + i * stride + half * (scattered ? 1 : hot_pages);
        mark(half, 0, hot, hot_pages, pages);
        uint64_t of_half = 0;
        for (int reached = 1; reached <= 4; reached *= 2) {
            for (; of_half < (uint64_t)reached * updates; of_half++) {
                uint64_t r = word(&random);
                uint64_t *at = arena + (size_t)hot[(r >> 32) * hot_pages >> 32] * WORDS +
                               r % WORDS;
                if (writes) {
                    *at += 1;
                    done++;
                } else {
                    read += *(volatile uint64_t *)at;
                }
                if (of_half % HOT_OF_TEN == 0) {
                    read += *(volatile uint64_t *)(arena + swept);
                    swept = (swept + LINE) % (pages * WORDS);
                }
                if (of_half % TURNOVER == 0)
                    forget_translations();
                uint64_t x = work;
                for (int i = 0; i < PAUSE; i++)
                    word(&x);
                work = x;
            }
            mark(half, reached, hot, hot_pages, pages);
        }
    }
    for (size_t i = 0; i < pages * WORDS; i++)
        sum -= arena[i];
    if (sum + done != 0) {
        puts("content WRONG");
        return 1;
    }
    printf("content intact, read=%llx\n", (unsigned long long)read);
    return 0;
}
