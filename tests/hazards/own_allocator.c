/* A program with an allocator of its own: management begins in the middle of it, with its lock
 * held, and so do forks, in whose children it begins again. */
#include "own_allocator.h"
#include "allocations.h"

int main(void)
{
    allocations_all();
    CHECK(atomic_load(&allocations) > BLOCKS);
    return 0;
}
