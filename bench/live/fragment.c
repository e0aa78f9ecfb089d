/* Fragments free memory as the CBMM paper's tool does: populates it, gives back all but the
 * last 4 KiB of every 2 MiB, and holds those. What is free then has no block of 2 MiB in it.
 * The pages that are held can move, so compaction can undo it at a price.
 *
 *   cc -O2 -o fragment bench/live/fragment.c
 *   ./fragment 4096        of so many MiB; prints `ready`, and holds until its input ends
 *   ./fragment all         of as much as it takes until four such blocks are free at most, on a machine
 *                          of its own: memory is full for a moment, and what else is there has to leave
 *
 * When it ends, however it does, everything is given back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t huge = 2 << 20, base = 4096;

/* Free blocks of 2 MiB. Those of x86's zone DMA are not for programs, and stay free. */
static size_t blocks(void)
{
    FILE *file = fopen("/proc/buddyinfo", "r");
    if (!file) {
        perror("fragment: /proc/buddyinfo");
        exit(1);
    }
    char line[512], zone[32];
    size_t sum = 0;
    while (fgets(line, sizeof line, file)) {
        int begin = 0;
        if (sscanf(line, "Node %*d, zone %31s%n", zone, &begin) != 1 || !strcmp(zone, "DMA"))
            continue;
        char *rest = line + begin, *end;
        for (int order = 0;; order++, rest = end) {
            size_t count = strtoul(rest, &end, 10);
            if (end == rest)
                break;
            if (order >= 9)
                sum += count << (order - 9);
        }
    }
    fclose(file);
    return sum;
}

static void populate(char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += base)
        at[i] = 1;
}

static void give_back(char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += huge)
        madvise(at + i, huge - base, MADV_DONTNEED);
}

/* Populates until no block is free, which takes the pieces first, and gives back; again where that has
 * made a block. Says whether it came to an end. */
static int all(char *at, size_t bytes)
{
    size_t done = 0;
    for (int round = 0; round < 8 && blocks(); round++) {
        size_t begin = done, left;
        while ((left = blocks()) && done + bytes / 16 < bytes) {
            /* Never more than half of what is free: past the last block there is no memory. */
            size_t step = left > 1 ? (left - 1) << 20 : 64 << 10;
            if (step > bytes / 16)
                step = bytes / 16;
            populate(at + done, step);
            done += step;
        }
        /* The last 2 MiB, of which a part was populated, have a page that is held, too. */
        done = (done + huge - 1) / huge * huge;
        at[done - base] = 1;
        give_back(at + begin, done - begin);
    }
    /* Whoever frees memory meanwhile makes a block now and then. */
    return blocks() <= 4;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "fragment MIB|all\n");
        return 2;
    }
    int is_all = !strcmp(argv[1], "all");
    /* All of it may be populated in each round, always at addresses of its own. */
    size_t bytes = is_all ? ((size_t)sysconf(_SC_PHYS_PAGES) * base / huge + 1) * huge * 16
                          : (size_t)atol(argv[1]) << 20;
    char *at = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || !bytes) {
        perror("fragment");
        return 1;
    }
    at += (huge - (size_t)at % huge) % huge;
    /* Base pages, or else what is given back would be split only later. */
    madvise(at, bytes, MADV_NOHUGEPAGE);
    if (!is_all) {
        populate(at, bytes);
        give_back(at, bytes);
    } else if (!all(at, bytes)) {
        fprintf(stderr, "fragment: %zu blocks of 2 MiB are free still\n", blocks());
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
