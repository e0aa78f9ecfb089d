/* A program with mimalloc, as a library (Debian has no other), in the place of the C library's
 * allocator (the runner links it where there is one). */
#if !__has_include(<mimalloc.h>)
#include "hazard.h"
int main(void) { skip("libmimalloc-dev is not installed"); }
#else
#include "allocations.h"
#include <mimalloc.h>

int main(void)
{
    /* It is what the program calls. */
    void *volatile block = malloc(100);
    CHECK(mi_is_in_heap_region(block));
    free(block);
    allocations_all();
    return 0;
}
#endif
