/* A parent with memory of its own and workers forked from it, each with some more: reads at random
 * of both, every value checked. For decision 0013.
 *
 *   cc -O2 -o workers bench/families/workers.c
 *   ./workers 60 4 30 4000; terrace run --engine pager --fast 100MiB -- ./workers 60 4 30 4000
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Numbers of 8 bytes in a MiB. */
#define NUMBERS 131072u

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t value(size_t i, uint64_t salt)
{
    return ((uint64_t)i * 0x9e3779b9u ^ salt) & 0xffff;
}

static uint64_t *filled(size_t mib, uint64_t salt)
{
    uint64_t *numbers = malloc(mib << 20);
    if (!numbers) {
        perror("malloc");
        exit(1);
    }
    for (size_t i = 0; i < mib * NUMBERS; i++)
        numbers[i] = value(i, salt);
    return numbers;
}

static int work(size_t nth, const uint64_t *inherited, size_t inherited_mib, size_t own_mib, double seconds)
{
    uint64_t salt = nth + 2, random = nth * 77 + 1, reads = 0;
    const uint64_t *own = filled(own_mib, salt);
    double end = now() + seconds;
    while (now() < end) {
        for (int k = 0; k < 64; k++, reads++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            size_t i = (random >> 20) % (inherited_mib * NUMBERS), j = (random >> 24) % (own_mib * NUMBERS);
            if (inherited[i] != value(i, 1) || own[j] != value(j, salt)) {
                printf("%zu: WRONG\n", nth);
                return 1;
            }
        }
    }
    printf("%zu: %.0f thousand reads\n", nth, (double)reads / 1e3);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 5 || atoi(argv[1]) < 1 || atoi(argv[3]) < 1) {
        fprintf(stderr, "workers PARENT-MIB WORKERS OWN-MIB MILLISECONDS\n");
        return 2;
    }
    size_t parent = (size_t)atoi(argv[1]), workers = (size_t)atoi(argv[2]), own = (size_t)atoi(argv[3]);
    const uint64_t *numbers = filled(parent, 1);
    for (size_t nth = 0; nth < workers; nth++) {
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 1;
        }
        if (child == 0) {
            int wrong = work(nth, numbers, parent, own, atoi(argv[4]) / 1e3);
            fflush(stdout);
            _exit(wrong);
        }
    }
    int wrong = 0, status;
    while (wait(&status) > 0)
        wrong |= status;
    puts(wrong ? "wrong" : "right");
    return wrong != 0;
}
