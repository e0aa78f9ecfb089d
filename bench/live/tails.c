/* The tail of first touches: maps memory, touches each of its pages for the first time, and
 * says how long each touch took; then updates all of it at random, and says how long that took.
 *
 *   cc -O2 -o tails bench/live/tails.c
 *   ./tails 512 order 20        512 MiB, pages in order (or: random), 20 million updates
 *
 * One line: count, p50, p99, p99.9, p99.99, greatest (ns), seconds of touches and of updates; a
 * second one with touches by powers of two of nanoseconds, to the greatest. `make bench-tails`
 * runs it under each setting of transparent huge pages and under `terrace run`.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "tails MIB order|random MILLION-UPDATES\n");
        return 2;
    }
    size_t bytes = (size_t)atol(argv[1]) << 20, pages = bytes / 4096;
    int random = !strcmp(argv[2], "random");
    /* Its own books are small, and there before anything is measured. */
    uint32_t *took = calloc(pages, sizeof *took);
    uint32_t *order = calloc(pages, sizeof *order);
    if (!took || !order)
        return 1;
    for (size_t i = 0; i < pages; i++)
        order[i] = (uint32_t)i, took[i] = 1;
    uint64_t x = 88172645463325252ull;
    for (size_t i = pages - 1; random && i > 0; i--) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        size_t j = x % (i + 1);
        uint32_t swapped = order[i];
        order[i] = order[j], order[j] = swapped;
    }
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return 1;
    uint64_t begin = now();
    for (size_t i = 0; i < pages; i++) {
        uint64_t start = now();
        *(volatile char *)(at + (size_t)order[i] * 4096) = 1;
        uint64_t ns = now() - start;
        took[i] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
    }
    uint64_t touched = now();
    for (long i = 0, n = atol(argv[3]) * 1000000; i < n; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        ((uint64_t *)at)[x % (bytes / 8)] += x;
    }
    uint64_t end = now();
    qsort(took, pages, sizeof *took, compare);
    printf("%zu %u %u %u %u %u %.3f %.3f\n", pages, took[pages / 2], took[pages * 99 / 100],
           took[pages * 999 / 1000], took[pages * 9999 / 10000], took[pages - 1],
           (double)(touched - begin) / 1e9, (double)(end - touched) / 1e9);
    size_t i = 0;
    for (int bit = 0; bit < 33 && i < pages; bit++) {
        size_t first = i;
        while (i < pages && took[i] < (1ull << bit))
            i++;
        if (i > first)
            printf("%llu:%zu ", 1ull << bit, i - first);
    }
    printf("\n");
    return 0;
}
