// A program with pages that cannot move: a pipe holds some of them, as it holds those of a program
// that sends a file.
//
//   pinned MIB SECONDS
//
// Uses so much memory, gives one page of each 4 MiB to a pipe, and gives back all others. Says
// `pinned`, holds these for so long, and looks whether they are intact.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define STEP (4ul << 20)
#define PAGE 4096ul

int main(int count, char **argument)
{
    if (count != 3)
        return 2;
    size_t size = strtoul(argument[1], NULL, 10) << 20;
    int ends[2];
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, 256 * PAGE) < 0) {
        perror("pinned");
        return 3;
    }
    // No page is large: it would move as a whole, or not.
    madvise(memory, size, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < size; at += PAGE)
        memset(memory + at, (int)(at >> 22) + 1, PAGE);
    size_t pages = 0;
    for (size_t at = 0; at < size; at += STEP) {
        struct iovec page = {memory + at, PAGE};
        if (vmsplice(ends[1], &page, 1, 0) != (ssize_t)PAGE) {
            perror("vmsplice");
            return 3;
        }
        size_t rest = size - at < STEP ? size - at : STEP;
        madvise(memory + at + PAGE, rest - PAGE, MADV_DONTNEED);
        pages++;
    }
    printf("pinned %zu pages\n", pages);
    fflush(stdout);
    sleep((unsigned)atoi(argument[2]));
    for (size_t at = 0; at < size; at += STEP) {
        char page[PAGE], wanted[PAGE];
        memset(wanted, (int)(at >> 22) + 1, PAGE);
        if (read(ends[0], page, PAGE) != (ssize_t)PAGE || memcmp(page, wanted, PAGE)
            || memcmp(memory + at, wanted, PAGE)) {
            puts("WRONG");
            return 1;
        }
    }
    puts("intact");
    return 0;
}
