/* A program with jemalloc linked into it (the runner links it where there is one). */
#if !__has_include(<jemalloc/jemalloc.h>)
#include "hazard.h"
int main(void) { skip("libjemalloc-dev is not installed"); }
#else
#include "allocations.h"
#include <jemalloc/jemalloc.h>

int main(void)
{
    /* It is what the program calls. */
    void *volatile block = malloc(100);
    CHECK(sallocx(block, 0) >= 100 && malloc_usable_size(block) == sallocx(block, 0));
    free(block);
    allocations_all();
    return 0;
}
#endif
