/* A program with tcmalloc linked into it (the runner links it where there is one). */
#if !__has_include(<gperftools/tcmalloc.h>)
#include "hazard.h"
int main(void) { skip("libgoogle-perftools-dev is not installed"); }
#else
#include "allocations.h"
#include <malloc.h>
#include <gperftools/tcmalloc.h>

int main(void)
{
    /* It is what the program calls. */
    void *volatile block = malloc(100);
    CHECK(tc_malloc_size(block) >= 100 && malloc_usable_size(block) == tc_malloc_size(block));
    free(block);
    allocations_all();
    return 0;
}
#endif
