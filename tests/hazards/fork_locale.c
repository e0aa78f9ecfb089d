/* The C library keeps a locale in the program's heap, and looks there when a thread begins. A forked
 * child's heap has what it had in its parent, though that page was not in memory at the fork. */
#include "hazard.h"
#include <ctype.h>
#include <locale.h>

int main(void)
{
    /* Both lie on the first pages of the heap. */
    unsigned char *before = malloc(700);
    memset(before, 0x5a, 700);
    if (!setlocale(LC_ALL, "C.UTF-8"))
        setlocale(LC_ALL, "C.utf8");
    unsigned char *behind = malloc(700);
    memset(behind, 0xa5, 700);
    size_t bytes = 6 * QUARTER;
    unsigned char *at = map(bytes);
    for (int round = 0; round < 4; round++) {
        fill(at, bytes, round);
        churn();
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            for (int i = 0; i < 700; i++)
                if (before[i] != 0x5a || behind[i] != 0xa5)
                    FAIL("heap at %d: %x and %x", i, before[i], behind[i]);
            if (toupper('q') != 'Q' || !isalpha('q'))
                FAIL("no classes of characters");
            char *more = malloc(3000);
            memset(more, 1, 3000);
            free(more);
            verify(at, bytes, round);
            _exit(0);
        }
        wait_ok(child);
        verify(at, bytes, round);
    }
    return 0;
}
