/* A child unmaps, discards and replaces what it inherited; the parent's memory
 * is not its memory. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 8 * QUARTER;
    unsigned char *at = map(bytes);
    char *heap = malloc(4 * QUARTER);
    CHECK(heap);
    fill(at, bytes, 1);
    fill_bytes(heap, 4 * QUARTER, 2);
    churn();
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        SYS(madvise(at, bytes / 4, MADV_DONTNEED));
        verify_zero(at, bytes / 4);
        SYS(munmap(at + bytes / 4, bytes / 4));
        SYS(mprotect(at + bytes / 2, bytes / 4, PROT_READ));
        void *moved = mremap(at + bytes * 3 / 4, bytes / 4, bytes / 4 + QUARTER, MREMAP_MAYMOVE);
        CHECK(moved != MAP_FAILED);
        verify_from(moved, bytes / 4, 1, bytes * 3 / 4 / PAGE);
        verify_zero((char *)moved + bytes / 4, QUARTER);
        free(heap);
        verify_from(at + bytes / 2, bytes / 4, 1, bytes / 2 / PAGE);
        _exit(0);
    }
    wait_ok(child);
    verify(at, bytes, 1);
    verify_bytes(heap, 4 * QUARTER, 2);
    free(heap);
    return 0;
}
