/* Shared memory of System V is attached over other memory (SHM_REMAP): it is what is there, also in
 * children. What lies beside it stays. New memory at its place, once it is detached, is zeros, and a child's. */
#include "hazard.h"
#include <sys/shm.h>

#define PART (2 * QUARTER)
#define ALL (3 * PART)
#define ACCESS (PROT_READ | PROT_WRITE)

/* Where nobody else maps anything. */
static unsigned char *const chosen = (void *)0x360000000000;
static int segment;
/* The same memory at another place. */
static unsigned char *view;

static void *attach(void *at, int flags, bool by_number)
{
    return by_number ? (void *)syscall(SYS_shmat, segment, at, flags) : shmat(segment, at, flags);
}

static void replace(unsigned char *at, bool marked, bool by_number)
{
    unsigned char *middle = at + PART;
    fill(at, ALL, 1);
    if (marked)
        SYS(madvise(at, ALL, MADV_WIPEONFORK));
    churn();
    CHECK(attach(middle, 0, by_number) == (void *)-1 && errno == EINVAL);
    verify(at, ALL, 1);
    churn();
    errno = 0;
    CHECK(attach(middle, SHM_REMAP, by_number) == middle && errno == 0);
    verify(middle, PART, 2);
    churn();
    fill(middle, PART, 3);
    churn();
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(middle, PART, 3);
        if (marked) {
            verify_zero(at, PART);
            verify_zero(middle + PART, PART);
        } else {
            verify(at, PART, 1);
            verify_from(middle + PART, PART, 1, 2 * PART / PAGE);
        }
        SYS(shmdt(middle));
        CHECK(mmap(middle, PART, ACCESS, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == middle);
        verify_zero(middle, PART);
        _exit(0);
    }
    wait_ok(child);
    verify(view, PART, 3);
    verify(at, PART, 1);
    verify_from(middle + PART, PART, 1, 2 * PART / PAGE);
    SYS(shmdt(middle));
    CHECK(mmap(middle, PART, ACCESS, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == middle);
    verify_zero(middle, PART);
    fill(middle, PART, 4);
    churn();
    verify(middle, PART, 4);
    child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(middle, PART, 4);
        _exit(0);
    }
    wait_ok(child);
    verify(view, PART, 3);
    fill(view, PART, 2);
    SYS(munmap(at, ALL));
}

int main(void)
{
    segment = shmget(IPC_PRIVATE, PART, IPC_CREAT | 0600);
    if (segment == -1)
        skip("there is no shared memory of System V here");
    view = shmat(segment, NULL, 0);
    SYS(shmctl(segment, IPC_RMID, NULL)); /* when nobody has it any more */
    CHECK(view != (void *)-1);
    fill(view, PART, 2);
    for (int round = 0; round < 8; round++) {
        int fixed = round & 4 ? MAP_FIXED_NOREPLACE : 0;
        unsigned char *at = mmap(fixed ? chosen : NULL, ALL, ACCESS, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
        CHECK(at != MAP_FAILED && (!fixed || at == chosen));
        replace(at, round & 1, round & 2);
    }
    CHECK(attach(NULL, SHM_REMAP, false) == (void *)-1 && errno == EINVAL);
    CHECK(shmat(-1, view, SHM_REMAP) == (void *)-1 && errno == EINVAL);
    verify(view, PART, 2);
    return 0;
}
