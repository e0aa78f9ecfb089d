// A program that uses so much memory, holds it for a while, and looks whether it is intact.
//
//   hog MIB [SECONDS]
//
// RESERVE=1 asks the kernel to have it all at once, as malloc does; otherwise it is asked for
// page by page. SIGUSR1 ends the time for which it holds it. Says `filled` and `intact`, each with a
// line of its own.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t word(size_t at)
{
    return at * 0x9e3779b97f4a7c15 ^ 0x5a5a;
}

static void interrupt_sleep(int signal)
{
    (void)signal;
}

int main(int count, char **argument)
{
    if (count < 2)
        return 2;
    signal(SIGUSR1, interrupt_sleep);
    size_t size = strtoul(argument[1], NULL, 10) << 20;
    int reserve = getenv("RESERVE") ? 0 : MAP_NORESERVE;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | reserve, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        return 3;
    }
    for (size_t at = 0; at < size; at += 4096)
        *(size_t *)(memory + at) = word(at);
    puts("filled");
    fflush(stdout);
    if (count > 2)
        sleep((unsigned)atoi(argument[2]));
    for (size_t at = 0; at < size; at += 4096)
        if (*(size_t *)(memory + at) != word(at)) {
            puts("WRONG");
            return 1;
        }
    puts("intact");
    return 0;
}
