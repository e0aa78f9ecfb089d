/* A program under a filter that lets it unmap nothing makes a large block much smaller. What stays mapped of
 * it is not lost: it is the block's. (The C library asks by another call, and need not know.) */
#include "filter.h"
#include <malloc.h>

#define BLOCK (6 * MIB)
#define LESS (2 * MIB)

int main(void)
{
    unsigned char *block = malloc(BLOCK);
    CHECK(block);
    fill(block, BLOCK, 1);
    churn();
    struct sock_filter code[] = {NUMBER, REFUSE(munmap), OTHERWISE(SECCOMP_RET_ALLOW)};
    struct sock_fprog program = PROGRAM(code);
    if (!set_filter(&program))
        skip("seccomp filters are not allowed here");

    CHECK(block = realloc(block, LESS));
    if (is_managed())
        CHECKF(malloc_usable_size(block) >= BLOCK, "%zu KiB of it are left",
               malloc_usable_size(block) / KIB);
    verify(block, LESS, 1);
    fill(block, malloc_usable_size(block), 2);
    churn();
    verify(block, malloc_usable_size(block), 2);
    free(block);
    return 0;
}
