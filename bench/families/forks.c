/* Fills memory and forks children that end at once: what a fork costs. For decision 0013.
 *
 *   cc -O2 -o forks bench/families/forks.c
 *   ./forks 400 3; terrace run --engine pager --fast 600MiB -- ./forks 400 3
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "forks MIB TIMES\n");
        return 2;
    }
    for (int i = 0; i < atoi(argv[1]); i++) {
        char *mib = malloc(1 << 20);
        if (!mib) {
            perror("malloc");
            return 1;
        }
        memset(mib, i * 7 + 1, 1 << 20);
    }
    for (int i = 0; i < atoi(argv[2]); i++) {
        double start = now();
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            return 1;
        }
        if (child == 0)
            _exit(0);
        double took = now() - start;
        waitpid(child, NULL, 0);
        printf("%.1f ms\n", took);
        usleep(300000);
    }
}
