/* Programs for `terrace reproduce cbmm --trace`: small, and made here, in the shape of well-known
 * ones.
 *
 *   cc -O2 -o programs bench/cbmm/programs.c
 *   ./programs pagerank    as in the GAP benchmark suite: sums over the neighbours of each vertex,
 *                          on a graph whose degrees are the same and whose targets are skewed
 *   ./programs lookups     as in XSBench: an energy is sought in a grid of all nuclides' energies,
 *                          and cross sections are read for each nuclide of a material
 *   ./programs matrices    a product of two matrices, row by column
 *
 * Each prints a sum, so that nothing is optimised away.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252ull;

static uint64_t next(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static void *need(size_t bytes)
{
    void *at = malloc(bytes);
    if (!at) {
        perror("programs");
        exit(1);
    }
    return at;
}

/* 2^18 vertices of 16 edges: 16 MiB of targets, 4 MiB of ranks. */
static double pagerank(void)
{
    const uint32_t vertices = 1u << 18, degree = 16;
    uint32_t *targets = need((size_t)vertices * degree * sizeof *targets);
    double *rank = need(vertices * sizeof *rank), *give = need(vertices * sizeof *give);
    for (size_t i = 0; i < (size_t)vertices * degree; i++) {
        /* Skewed, as a Kronecker graph's: the and of two numbers has few bits set. */
        targets[i] = (uint32_t)(next() & next() >> 20) & (vertices - 1);
    }
    for (uint32_t v = 0; v < vertices; v++)
        rank[v] = 1.0 / vertices;
    for (int iteration = 0; iteration < 4; iteration++) {
        for (uint32_t v = 0; v < vertices; v++)
            give[v] = rank[v] / degree;
        for (uint32_t v = 0; v < vertices; v++) {
            double sum = 0;
            for (uint32_t e = 0; e < degree; e++)
                sum += give[targets[(size_t)v * degree + e]];
            rank[v] = 0.15 / vertices + 0.85 * sum;
        }
    }
    double all = 0;
    for (uint32_t v = 0; v < vertices; v++)
        all += rank[v];
    return all;
}

/* 64 nuclides of 2048 energies: 32 MiB of indices, 6 MiB of cross sections. */
static double lookups(void)
{
    const uint32_t nuclides = 64, points = 2048, all = nuclides * points;
    double *energy = need(all * sizeof *energy);
    uint32_t *index = need((size_t)all * nuclides * sizeof *index);
    double *section = need((size_t)nuclides * points * 6 * sizeof *section);
    for (uint32_t i = 0; i < all; i++) {
        energy[i] = (i + 0.5) / all;
        for (uint32_t n = 0; n < nuclides; n++)
            index[(size_t)i * nuclides + n] = i / nuclides;
    }
    for (size_t i = 0; i < (size_t)nuclides * points * 6; i++)
        section[i] = (double)(i % 1000) / 1000;
    double sum = 0;
    for (int lookup = 0; lookup < 60000; lookup++) {
        double wanted = (double)(next() >> 11) / 9007199254740992.0;
        uint32_t low = 0, high = all - 1;
        while (high - low > 1) {
            uint32_t middle = (low + high) / 2;
            if (energy[middle] <= wanted)
                low = middle;
            else
                high = middle;
        }
        /* A material: every third nuclide, from one drawn at random. */
        for (uint32_t n = next() % 3; n < nuclides; n += 3) {
            uint32_t at = index[(size_t)low * nuclides + n];
            const double *row = section + ((size_t)n * points + at) * 6;
            for (int i = 0; i < 5; i++)
                sum += row[i];
        }
    }
    return sum;
}

/* 1500 by 1500: 17 MiB each. */
static double matrices(void)
{
    const size_t n = 1500;
    double *a = need(n * n * sizeof *a), *b = need(n * n * sizeof *b);
    for (size_t i = 0; i < n * n; i++)
        a[i] = (double)(i % 7), b[i] = (double)(i % 5);
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double cell = 0;
            for (size_t k = 0; k < n; k++)
                cell += a[i * n + k] * b[k * n + j];
            sum += cell;
        }
    return sum;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    double (*program)(void) = !strcmp(what, "pagerank")   ? pagerank
                              : !strcmp(what, "lookups")  ? lookups
                              : !strcmp(what, "matrices") ? matrices
                                                          : NULL;
    if (!program) {
        fprintf(stderr, "programs pagerank|lookups|matrices\n");
        return 2;
    }
    printf("%g\n", program());
    return 0;
}
