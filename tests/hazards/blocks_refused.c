/* A program that has as many mappings as the kernel allows frees a large block from the midst of others. The
 * kernel does not unmap it, for that would leave one mapping more. Its memory is free all the same, and so
 * are its addresses once there is room again. (The C library leaves such a block where it is for good.) */
#include "hazard.h"

/* So long that, with what the allocator puts in front, blocks lie without a gap and are one mapping. The last
 * page is not looked at. */
#define BLOCK (2 * MIB - 16)
enum { BLOCKS = 5, MIDDLE = 2 };

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

static void verify_others(unsigned char *const *blocks)
{
    for (size_t i = 0; i < BLOCKS; i++)
        if (i != MIDDLE)
            verify(blocks[i], BLOCK, i + 1);
}

int main(void)
{
    size_t pages = allowed() + 1000;
    if (pages > 101000)
        skip("this machine allows very many mappings");
    unsigned char *blocks[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        CHECK(blocks[i] = malloc(BLOCK));
        fill(blocks[i], BLOCK, i + 1);
    }
    churn();
    unsigned char *at = map(pages * PAGE);
    size_t page = 0;
    while (page < pages && mprotect(at + page * PAGE, PAGE, PROT_READ) == 0)
        page += 2;
    CHECKF(page < pages && errno == ENOMEM, "there is no limit");

    size_t before = anonymous(), space = address_space();
    errno = 0;
    free(blocks[MIDDLE]);
    CHECKF(errno == 0, "it has set the error number");
    if (is_managed())
        CHECKF(anonymous() + MIB < before, "%zu KiB, and %zu before", anonymous() / KIB, before / KIB);
    verify_others(blocks);

    /* All become one, and that is unmapped: there is room for a hole. */
    SYS(mprotect(at, pages * PAGE, PROT_READ | PROT_WRITE));
    SYS(munmap(at, pages * PAGE));
    size_t gone = space - address_space();
    if (is_managed())
        CHECKF(gone >= pages * PAGE + MIB, "%zu KiB of %zu were unmapped", gone / KIB,
               (pages * PAGE + 2 * MIB) / KIB);
    verify_others(blocks);
    for (size_t i = 0; i < BLOCKS; i++)
        if (i != MIDDLE)
            free(blocks[i]);
    return 0;
}
