/* Walks through fresh memory and updates it at random, four times over: what a first
 * touch costs, and an access afterwards. For decision 0007.
 *
 *   cc -O2 -o walk bench/live/walk.c
 *   ./walk 1200 800 whole base; terrace run --quiet --fast 1GiB -- ./walk 1200 800 whole default
 *
 * `sparse` touches one byte a page. `base` and `huge` ask the kernel for pages of 4 KiB or
 * 2 MiB, `default` for nothing. `make bench-huge` runs all of them.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "walk MAPPED-MIB WALKED-MIB whole|sparse base|huge|default\n");
        return 2;
    }
    int sparse = !strcmp(argv[3], "sparse");
    size_t mapped = (size_t)atol(argv[1]) << 20, walked = (size_t)atol(argv[2]) << 20;
    for (int round = 0; round < 4; round++) {
        char *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            return 1;
        if (strcmp(argv[4], "default"))
            madvise(at, mapped, strcmp(argv[4], "huge") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
        double start = now();
        if (sparse)
            for (size_t i = 0; i < walked; i += 4096)
                at[i] = 1;
        else
            memset(at, 1, walked);
        double filled = now();
        const long updates = 20000000;
        uint64_t x = 88172645463325252ull;
        for (long i = 0; i < updates; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            ((uint64_t *)at)[x % walked / 8] += x;
        }
        double end = now();
        printf("%.2f us a page, %.0f us for 2 MiB; %.1f M random updates a second\n",
               (filled - start) * 1e6 / (double)(walked / 4096),
               (filled - start) * 1e6 / (double)(walked >> 21),
               (double)updates / (end - filled) / 1e6);
        munmap(at, mapped);
    }
    return 0;
}
