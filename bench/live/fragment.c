/* Fragments free memory as the CBMM paper's tool does: populates it, gives back all but the
 * last 4 KiB of every 2 MiB, and holds those. What is free then has no block of 2 MiB in it.
 * The pages that are held can move, so compaction can undo it at a price.
 *
 *   cc -O2 -o fragment bench/live/fragment.c
 *   ./fragment 4096        of so many MiB; prints `ready`, and holds until its input ends
 *
 * When it ends, however it does, everything is given back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "fragment MIB\n");
        return 2;
    }
    const size_t huge = 2 << 20, base = 4096;
    size_t bytes = (size_t)atol(argv[1]) << 20;
    char *at = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || !bytes) {
        perror("fragment");
        return 1;
    }
    at += (huge - (size_t)at % huge) % huge;
    /* Base pages, or else what is given back would be split only later. */
    madvise(at, bytes, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < bytes; i += base)
        at[i] = 1;
    for (size_t i = 0; i < bytes; i += huge)
        madvise(at + i, huge - base, MADV_DONTNEED);
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
