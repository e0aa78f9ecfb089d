/* A program that makes as many mappings as the kernel allows has as many as on plain Linux, but
 * for a few: before it hears of the limit Terrace gives back what it has itself. */
#include "hazard.h"

static size_t allowed(void)
{
    size_t most = 65530;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    if (file) {
        CHECK(fscanf(file, "%zu", &most) == 1);
        fclose(file);
    }
    return most;
}

int main(void)
{
    size_t most = allowed(), pages = most + 1000;
    if (most > 100000)
        skip("this machine allows very many mappings");
    unsigned char *used = map(6 * QUARTER);
    fill(used, 6 * QUARTER, 1);
    churn();
    unsigned char *at = map(pages * PAGE);
    size_t made = 0;
    for (size_t page = 0; page < pages; page += 2, made += 2)
        if (mprotect(at + page * PAGE, PAGE, PROT_READ)) {
            CHECKF(errno == ENOMEM, "%s", strerror(errno));
            break;
        }
    CHECKF(made < pages, "there is no limit");
    CHECKF(made + 150 > most, "%zu mappings of %zu", made, most);
    verify(used, 6 * QUARTER, 1);
    verify_zero(at, 64 * PAGE);
    /* All become one. */
    SYS(mprotect(at, pages * PAGE, PROT_READ | PROT_WRITE));
    fill(used, 6 * QUARTER, 2);
    SYS(munmap(at, pages * PAGE));
    verify(used, 6 * QUARTER, 2);
    return 0;
}
