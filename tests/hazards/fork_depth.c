/* Children of children of children: each generation has what its parent had, and nothing of the
 * parent's threads. What a process has mapped must not grow with the number of its ancestors. */
#include "hazard.h"

enum { GENERATIONS = 32, FIRST = 3, MOST = 4096 };
static const size_t bytes = 6 * QUARTER;
/* Of all generations together: a heap may grow once, and at the beginning a process may have 4 MiB
 * for a moment, in which faults are timed. */
static const size_t SPACE = 6 * MIB;
enum { MAPPINGS = 4 };

struct range {
    unsigned long start, end;
};
static struct range before[MOST], now[MOST];
static size_t count_before;

static size_t mappings(struct range *to)
{
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file);
    size_t count = 0;
    char line[1024];
    while (fgets(line, sizeof line, file)) {
        CHECK(count < MOST);
        if (sscanf(line, "%lx-%lx", &to[count].start, &to[count].end) == 2)
            count++;
    }
    fclose(file);
    return count;
}

/* Names what the early generation had not. */
static void show(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool known = false;
        for (size_t k = 0; k < count_before && !known; k++)
            known = before[k].start == now[i].start && before[k].end == now[i].end;
        if (!known)
            fprintf(stderr, "new: %lx-%lx\n", now[i].start, now[i].end);
    }
    fflush(stderr);
}

int main(void)
{
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    int ends[2];
    SYS(pipe(ends));
    pid_t first = 0;
    size_t space = 0;
    for (int generation = 1; generation <= GENERATIONS; generation++) {
        pid_t child = (pid_t)SYS(fork());
        if (child) {
            if (generation > 1)
                _exit(0);
            first = child;
            break;
        }
        close(ends[0]);
        ends[0] = open("/dev/null", O_RDONLY);
        verify(at, bytes, 1);
        if (generation == FIRST) {
            count_before = mappings(before);
            space = address_space();
        }
    }
    if (first) {
        close(ends[1]);
        char said = 0;
        CHECKF(read(ends[0], &said, 1) == 1 && said == 'k', "a generation did not come to its end");
        wait_ok(first);
        verify(at, bytes, 1);
        return 0;
    }
    size_t count = mappings(now), grown = address_space();
    if (count > count_before + MAPPINGS || grown > space + SPACE) {
        show(count);
        FAIL("%d generations: %zu mappings became %zu, %zu KiB became %zu", GENERATIONS - FIRST,
             count_before, count, space / KIB, grown / KIB);
    }
    SYS(write(ends[1], "k", 1));
    _exit(0);
}
