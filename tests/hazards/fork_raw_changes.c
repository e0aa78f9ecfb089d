/* A child of a fork past the C library (the system call, and _Fork) changes its memory at once: it unmaps,
 * discards and moves parts, and forks in turn. It has its memory in the end, and so have its children. */
#include "instruction.h"

static const size_t BYTES = 4ul << 20, PART = 1ul << 20;

/* Content of a seed as it was at a distance from the start. */
static void has(const unsigned char *at, size_t bytes, size_t from)
{
    verify_from(at, bytes, 1, from / PAGE);
}

static void fork_and_look(const unsigned char *at, size_t bytes, size_t from, bool raw)
{
    pid_t child = (pid_t)SYS(raw ? instruction(SYS_fork, 0, 0, 0, 0, 0, 0) : fork());
    if (child == 0) {
        has(at, bytes, from);
        instruction(SYS_exit_group, 0, 0, 0, 0, 0, 0);
    }
    has(at, bytes, from);
    wait_ok(child);
}

static void change(unsigned char *at, unsigned char *to, int what)
{
    switch (what) {
    case 0:
        SYS(instruction(SYS_munmap, (long)at, (long)PART, 0, 0, 0, 0));
        has(at + PART, BYTES - PART, PART);
        break;
    case 1:
        SYS(instruction(SYS_madvise, (long)at, (long)PART, MADV_DONTNEED, 0, 0, 0));
        verify_zero(at, PART);
        has(at + PART, BYTES - PART, PART);
        break;
    case 2:
        CHECK(instruction(SYS_mremap, (long)at, (long)PART, (long)PART,
                          MREMAP_MAYMOVE | MREMAP_FIXED, (long)to, 0) == (long)to);
        fork_and_look(to, PART, 0, true);
        has(at + PART, BYTES - PART, PART);
        break;
    case 3:
        fork_and_look(at, BYTES, 0, true);
        break;
    case 4:
        fork_and_look(at, BYTES, 0, false);
        break;
    default:
        /* One after the other, from the end. */
        for (size_t part = BYTES / PART; part-- > 1;) {
            CHECK(instruction(SYS_mremap, (long)(at + part * PART), (long)PART, (long)PART,
                              MREMAP_MAYMOVE | MREMAP_FIXED, (long)to, 0) == (long)to);
            has(to, PART, part * PART);
            SYS(instruction(SYS_madvise, (long)to, (long)(PART / 2), MADV_DONTNEED, 0, 0, 0));
            verify_zero(to, PART / 2);
            has(to + PART / 2, PART / 2, part * PART + PART / 2);
        }
        has(at, PART, 0);
    }
}

int main(void)
{
    unsigned char *at = map(BYTES), *to = map(PART);
    fill(at, BYTES, 1);
    for (int what = 0; what < 6; what++) {
        for (int raw = 0; raw < 2; raw++) {
            for (int later = 0; later < 2; later++) {
                churn();
                pid_t child = (pid_t)SYS(raw ? syscall(SYS_fork) : _Fork());
                if (child == 0) {
                    if (later)
                        usleep(300);
                    change(at, to, what);
                    instruction(SYS_exit_group, 0, 0, 0, 0, 0, 0);
                }
                wait_ok(child);
            }
        }
    }
    has(at, BYTES, 0);
    return 0;
}
