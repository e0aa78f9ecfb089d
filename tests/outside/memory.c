/* A program that has much memory, does something with processes, and looks whether its memory is
 * what it should be.
 *
 *   memory MIB WHAT [N]
 *
 * WHAT: `hold` N milliseconds, touching here and there · `until` its input ends, the same for N
 * milliseconds at least · `forks` N children that look at all of it
 * and write to half · `exec` itself N times · `exits` N children that end in as many ways ·
 * `swarm` N short processes, one after the other, eight at a time · `threads` N threads that walk ·
 * `fill` with N threads at a time, five times · `lock` N MiB of it, for a second.
 * Exit code 0 if all is intact, and `intact` on stdout; 9 if a page is wrong. */

#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 512 };

static uint64_t *memory;
static size_t pages;
static int noise; /* Whether nothing of it compresses. */

static uint64_t word(size_t page, size_t i, uint64_t round)
{
    if (!noise && i >= WORDS / 2)
        return round;
    uint64_t x = page * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u + round;
    x = (x ^ (x >> 30)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void write_page(size_t page, uint64_t round)
{
    for (size_t i = 0; i < WORDS; i++)
        memory[page * WORDS + i] = word(page, i, round);
}

static void check_page(size_t page, uint64_t round)
{
    for (size_t i = 0; i < WORDS; i += 17)
        if (memory[page * WORDS + i] != word(page, i, round)) {
            fprintf(stderr, "page %zu, word %zu is wrong in process %d\n", page, i, (int)getpid());
            _exit(9);
        }
}

static void check_all(uint64_t round)
{
    for (size_t page = 0; page < pages; page++)
        check_page(page, round);
}

/* Waits for a child; its status must be this. */
static void wait_for(int wanted)
{
    int status;
    if (wait(&status) < 0 || status != wanted) {
        fprintf(stderr, "a child ended with status %#x, not %#x\n", status, wanted);
        _exit(8);
    }
}

static pid_t child(void)
{
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        _exit(7);
    }
    return pid;
}

static void *walk(void *at)
{
    for (size_t i = 0; i < pages; i++)
        check_page((i + (size_t)at * 97) % pages, 0);
    return NULL;
}

/* Whether nothing more comes in. What has come is dropped. */
static int input_has_ended(void)
{
    struct pollfd input = {0, POLLIN, 0};
    char dropped[256];
    return poll(&input, 1, 0) > 0 && read(0, dropped, sizeof dropped) <= 0;
}

static unsigned parts;

/* Fills a part, as fast as it can. */
static void *fill(void *part)
{
    for (size_t page = (size_t)part; page < pages; page += parts)
        write_page(page, 0);
    return NULL;
}

int main(int count, char **argument)
{
    if (count < 3)
        return 2;
    size_t mib = strtoul(argument[1], NULL, 10);
    const char *what = argument[2];
    unsigned n = count > 3 ? (unsigned)atoi(argument[3]) : 0;
    noise = getenv("NOISE") != NULL;
    pages = mib << 8;
    memory = mmap(NULL, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        return 3;
    }
    for (size_t page = 0; page < pages; page++)
        write_page(page, 0);
    puts("filled");
    fflush(stdout);

    if (!strcmp(what, "hold") || !strcmp(what, "until")) {
        int waits = !strcmp(what, "until");
        struct timespec begun, now;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        uint64_t at = 1;
        do {
            for (int i = 0; i < 64; i++) {
                at = at * 6364136223846793005u + 1442695040888963407u;
                check_page((at >> 33) % pages, 0);
            }
            usleep(500);
            waits = waits && !input_has_ended();
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while (waits || (now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < (long)n);
    } else if (!strcmp(what, "forks")) {
        for (unsigned i = 0; i < n; i++)
            if (child() == 0) {
                check_all(0);
                for (size_t page = i % 2; page < pages; page += 2)
                    write_page(page, i + 1);
                for (size_t page = 0; page < pages; page++)
                    check_page(page, page % 2 == i % 2 ? i + 1 : 0);
                _exit(0);
            }
        for (unsigned i = 0; i < n; i++)
            wait_for(0);
    } else if (!strcmp(what, "exec")) {
        check_all(0);
        if (n > 0) {
            char left[16];
            snprintf(left, sizeof left, "%u", n - 1);
            execl("/proc/self/exe", argument[0], argument[1], what, left, (char *)NULL);
            perror("exec");
            return 6;
        }
    } else if (!strcmp(what, "exits")) {
        for (unsigned i = 0; i < n; i++) {
            if (child() == 0) {
                check_page(i % pages, 0);
                write_page(i % pages, 5);
                switch (i % 4) {
                case 0: exit(0);
                case 1: _exit(3);
                case 2: raise(SIGKILL); break;
                default: raise(SIGTERM);
                }
            }
            int wanted[] = {0, 3 << 8, SIGKILL, SIGTERM};
            wait_for(wanted[i % 4]);
        }
    } else if (!strcmp(what, "swarm")) {
        unsigned live = 0;
        for (unsigned i = 0; i < n; i++) {
            if (live == 8) {
                wait_for(0);
                live--;
            }
            if (child() == 0) {
                check_page((i * 977u) % pages, 0);
                _exit(0);
            }
            live++;
        }
        while (live--)
            wait_for(0);
    } else if (!strcmp(what, "lock")) {
        if (mlock(memory, (size_t)n << 20)) {
            perror("mlock");
            return 4;
        }
        sleep(1);
    } else if (!strcmp(what, "fill")) {
        pthread_t threads[64];
        parts = n > 64 ? 64 : n;
        for (int round = 0; round < 5; round++) {
            if (madvise(memory, mib << 20, MADV_DONTNEED))
                return 4;
            for (unsigned i = 0; i < parts; i++)
                if (pthread_create(&threads[i], NULL, fill, (void *)(size_t)i))
                    return 5;
            for (unsigned i = 0; i < parts; i++)
                pthread_join(threads[i], NULL);
        }
    } else if (!strcmp(what, "threads")) {
        pthread_t threads[64];
        n = n > 64 ? 64 : n;
        for (unsigned i = 0; i < n; i++)
            if (pthread_create(&threads[i], NULL, walk, (void *)(size_t)i))
                return 5;
        for (unsigned i = 0; i < n; i++)
            pthread_join(threads[i], NULL);
    } else
        return 2;
    check_all(0);
    puts("intact");
    return 0;
}
