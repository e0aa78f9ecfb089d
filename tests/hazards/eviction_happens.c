/* The suite proves nothing if memory never goes away: after a churn most of
 * what was written before must really be absent, and come back intact. Plainly
 * run, it must all be present. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 8 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    churn();
    size_t present = present_pages(at, bytes), pages = bytes / PAGE;
    if (is_managed())
        CHECKF(present < pages / 4, "%zu of %zu pages are still present after a churn", present, pages);
    else
        CHECKF(present == pages, "%zu of %zu pages are present", present, pages);
    verify(at, bytes, 1);

    unsigned char *heap = malloc(bytes);
    CHECK(heap);
    fill_bytes(heap, bytes, 2);
    churn();
    unsigned char *aligned = (unsigned char *)(((uintptr_t)heap + PAGE - 1) / PAGE * PAGE);
    present = present_pages(aligned, bytes - 2 * PAGE);
    if (is_managed())
        CHECKF(present < pages / 4, "%zu of %zu pages of a malloc are still present after a churn",
               present, pages);
    verify_bytes(heap, bytes, 2);
    free(heap);
    return 0;
}
