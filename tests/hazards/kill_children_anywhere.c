/* Children are killed at any moment: while they are being made, while they take
 * their memory over, while they fault. Their parent and their siblings notice
 * nothing, and go on making children. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 4 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    uint64_t random = (uint64_t)getpid();
    for (int round = 0; round < 12; round++) {
        pid_t victim = (pid_t)SYS(fork());
        if (victim == 0) {
            for (;;) {
                verify(at, bytes, 1);
                fill(at, bytes, 1);
                churn();
            }
        }
        random = mix(random);
        struct timespec wait = { 0, (long)(random % 4000000) };
        if (round % 3)
            nanosleep(&wait, NULL);
        pid_t sibling = -1;
        if (round % 4 == 0) {
            sibling = (pid_t)SYS(fork());
            if (sibling == 0) {
                churn();
                verify(at, bytes, 1);
                _exit(0);
            }
        }
        SYS(kill(victim, SIGKILL));
        wait_signal(victim, SIGKILL);
        verify(at, bytes / 4, 1);
        if (sibling > 0)
            wait_ok(sibling);
    }
    verify(at, bytes, 1);
    return 0;
}
