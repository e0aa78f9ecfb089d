/* Memory that was never touched reads as zeros, whatever is around it. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 16 * QUARTER;
    unsigned char *at = map(bytes);
    verify_zero(at, bytes / 2);
    churn();
    verify_zero(at, bytes / 2); /* read, evicted, read again */

    /* Every fourth page is written; its neighbours must stay zero. */
    for (size_t page = 0; page < bytes / PAGE; page += 4)
        fill_from(at + page * PAGE, PAGE, 1, page);
    churn();
    for (size_t page = 0; page < bytes / PAGE; page++)
        if (page % 4 == 0)
            verify_from(at + page * PAGE, PAGE, 1, page);
        else
            verify_zero(at + page * PAGE, PAGE);

    /* The first touch is a write of one byte: the rest of that page is zero. */
    unsigned char *fresh = map(4 * QUARTER);
    for (size_t page = 0; page < 4 * QUARTER / PAGE; page++)
        fresh[page * PAGE + page % PAGE] = 0xaa;
    churn();
    for (size_t i = 0; i < 4 * QUARTER; i++)
        CHECKF(fresh[i] == (i % PAGE == i / PAGE % PAGE ? 0xaa : 0), "byte %zu is %#x", i, fresh[i]);
    return 0;
}
