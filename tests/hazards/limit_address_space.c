/* RLIMIT_AS: requests beyond the limit fail as they should, requests within it
 * succeed, and faults go on when nothing more can be mapped. */
#include "hazard.h"
#include <sys/resource.h>

int main(void)
{
    size_t bytes = 8 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    size_t used = address_space();
    struct rlimit limit = {used + 300 * MIB, RLIM_INFINITY};
    SYS(setrlimit(RLIMIT_AS, &limit));
    CHECK(mmap(NULL, 1024 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED
          && errno == ENOMEM);
    void *volatile much = malloc(1024 * MIB);
    CHECK(much == NULL);
    unsigned char *some = map(4 * QUARTER);
    fill(some, 4 * QUARTER, 2);
    churn();
    verify(some, 4 * QUARTER, 2);
    verify(at, bytes, 1);
    SYS(munmap(some, 4 * QUARTER));
    /* Not one page more: what is mapped stays usable. */
    limit.rlim_cur = address_space();
    SYS(setrlimit(RLIMIT_AS, &limit));
    for (uint64_t round = 1; round < 3; round++) {
        churn();
        verify(at, bytes, round);
        fill(at, bytes, round + 1);
    }
    churn();
    verify(at, bytes, 3);
    /* What would never fit is refused, and nothing is given up for it. */
    CHECK(mmap(NULL, 1024 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
    return 0;
}
