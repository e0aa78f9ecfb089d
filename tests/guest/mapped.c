/* A program that maps a file, shared with others that do, and has no descriptor of it.
 *
 *   mapped write|read FILE
 *
 * `write` makes the file: 8 MiB, on node 0, in which each word follows from its number. Then it counts in
 * the first word of each page, round after round. `read` compares all other words round after round, and
 * the first ones with what they were: they only grow. Each says `mapped` when it has begun. On SIGUSR1 it
 * says on which node the pages lie that it maps (one line, numbers of pages); on SIGTERM it compares all
 * of them once more, and exits with 0 if they are intact. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, PAGES = 2048, MPOL_DEFAULT = 0, MPOL_BIND = 2 };

static volatile sig_atomic_t stopped, asked;

static void note(int signal) {
    if (signal == SIGTERM)
        stopped = 1;
    else
        asked = 1;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t content(size_t page, size_t i) {
    return (page * WORDS + i) * 0x9e3779b97f4a7c15u >> 8;
}

static void make(const char *path) {
    unsigned long node = 1;
    if (syscall(SYS_set_mempolicy, MPOL_BIND, &node, 64UL) != 0)
        fail("mapped: set_mempolicy");
    int file = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (file < 0)
        fail("mapped: open");
    for (size_t page = 0; page < PAGES; page++) {
        uint64_t words[WORDS];
        for (size_t i = 0; i < WORDS; i++)
            words[i] = content(page, i);
        if (write(file, words, PAGE) != PAGE)
            fail("mapped: write");
    }
    close(file);
    syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0UL);
}

static void say_nodes(char *at) {
    void *addresses[PAGES];
    int status[PAGES];
    size_t on[2] = {0, 0}, other = 0;
    for (size_t page = 0; page < PAGES; page++)
        addresses[page] = at + page * PAGE;
    if (syscall(SYS_move_pages, 0, (unsigned long)PAGES, addresses, NULL, status, 0) != 0)
        fail("mapped: move_pages");
    for (size_t page = 0; page < PAGES; page++) {
        if (status[page] == 0 || status[page] == 1)
            on[status[page]]++;
        else
            other++;
    }
    printf("node0=%zu node1=%zu other=%zu\n", on[0], on[1], other);
    fflush(stdout);
}

int main(int count, char **argument) {
    if (count != 3) {
        fprintf(stderr, "usage: mapped write|read FILE\n");
        return 2;
    }
    int writes = strcmp(argument[1], "write") == 0;
    signal(SIGTERM, note);
    signal(SIGUSR1, note);
    if (writes)
        make(argument[2]);
    int file = open(argument[2], writes ? O_RDWR : O_RDONLY);
    if (file < 0)
        fail("mapped: open");
    int access = writes ? PROT_READ | PROT_WRITE : PROT_READ;
    char *at = mmap(NULL, PAGES * PAGE, access, MAP_SHARED, file, 0);
    if (at == MAP_FAILED)
        fail("mapped: mmap");
    close(file);

    static uint64_t first[PAGES];
    for (uint64_t rounds = 0;; rounds++) {
        int last = stopped;
        for (size_t page = 0; page < PAGES; page++) {
            volatile uint64_t *words = (uint64_t *)(at + page * PAGE);
            uint64_t is = words[0];
            int wrong = writes ? is != content(page, 0) + rounds : is < first[page];
            for (size_t i = 1; (!writes || last) && i < WORDS; i++)
                wrong |= words[i] != content(page, i);
            if (wrong) {
                printf("content WRONG in page %zu, round %llu\n", page, (unsigned long long)rounds);
                return 1;
            }
            first[page] = is;
            if (writes)
                words[0] = is + 1;
        }
        if (last)
            break;
        if (rounds == 0) {
            puts("mapped");
            fflush(stdout);
        }
        if (asked) {
            asked = 0;
            say_nodes(at);
        }
        /* The processors are emulated, and others want them. */
        usleep(10000);
    }
    puts("content intact");
    return 0;
}
