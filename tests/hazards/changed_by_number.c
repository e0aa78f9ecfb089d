/* Calls that change memory, made by their numbers (`syscall`): what is mapped over is gone, also in
 * children that were to find it empty; what was given back and is accessible again keeps what is written to it. */
#include "hazard.h"

#define PART (4 * QUARTER)
#define ACCESS (PROT_READ | PROT_WRITE)

static void *map_over(void *at, size_t bytes, int access)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    return (void *)syscall(SYS_mmap, at, bytes, access, flags, -1, 0l);
}

/* What was to be empty in children was the memory that is mapped over. */
static void maps_over(void)
{
    unsigned char *at = map(3 * PART), *middle = at + PART;
    fill(at, 3 * PART, 1);
    SYS(syscall(SYS_madvise, at, 3 * PART, MADV_WIPEONFORK));
    churn();
    CHECK(map_over(middle, PART, ACCESS) == middle);
    verify_zero(middle, PART);
    fill(middle, PART, 2);
    churn();
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(middle, PART, 2);
        verify_zero(at, PART);
        verify_zero(middle + PART, PART);
        _exit(0);
    }
    wait_ok(child);
    verify(at, PART, 1);
    verify(middle, PART, 2);
    verify_from(middle + PART, PART, 1, 2 * PART / PAGE);
    errno = 0;
    CHECK(map_over(at + 1, PART, ACCESS) == (void *)-1 && errno == EINVAL);
    CHECK(map_over(at, 0, ACCESS) == (void *)-1 && errno == EINVAL);
    SYS(syscall(SYS_munmap, at, 3 * PART));
}

/* Whether memory is registered for missing pages (`um`), as what is managed is. */
static bool is_registered(const unsigned char *place)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    CHECK(file);
    char line[512];
    bool is_here = false, registered = false;
    while (fgets(line, sizeof line, file)) {
        size_t start, end;
        if (sscanf(line, "%zx-%zx ", &start, &end) == 2)
            is_here = start <= (size_t)place && (size_t)place < end;
        else if (is_here && strncmp(line, "VmFlags:", 8) == 0)
            registered = strstr(line, " um") != NULL;
    }
    fclose(file);
    return registered;
}

static long allow(unsigned char *at, size_t bytes, bool by_key)
{
    return by_key ? syscall(SYS_pkey_mprotect, at, bytes, ACCESS, -1) : syscall(SYS_mprotect, at, bytes, ACCESS);
}

static void gives_back(bool by_key)
{
    unsigned char *at = map(3 * PART), *middle = at + PART;
    fill(at, 3 * PART, 3);
    churn();
    CHECK(mmap(middle, PART, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == middle);
    churn();
    SYS(allow(middle, PART, by_key));
    CHECKF(!is_managed() || is_registered(middle), "what is accessible again is not managed");
    verify_zero(middle, PART);
    fill(middle, PART, 4);
    churn();
    verify(at, PART, 3);
    verify(middle, PART, 4);
    verify_from(middle + PART, PART, 3, 2 * PART / PAGE);
    errno = 0;
    CHECK(allow(at + 1, PART, by_key) == -1 && errno == EINVAL);
    SYS(munmap(at, 3 * PART));
}

/* What was to be empty in children goes with the heap's end. Before anything is managed: then the heap is
 * managed with what it has grown by since. */
static void shortens_the_heap(void)
{
    uintptr_t end = (uintptr_t)sbrk(0);
    CHECK(sbrk((intptr_t)(-end & (PAGE - 1))) != (void *)-1);
    unsigned char *at = sbrk((intptr_t)PART);
    if (at == (void *)-1)
        return; /* It cannot grow here. */
    SYS(madvise(at, PART, MADV_WIPEONFORK));
    CHECK((unsigned char *)syscall(SYS_brk, at) == at);
    CHECK((unsigned char *)syscall(SYS_brk, at + PART) == at + PART);
    fill(at, PART, 5);
    churn();
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        verify(at, PART, 5);
        _exit(0);
    }
    wait_ok(child);
    verify(at, PART, 5);
}

/* The heap's end, of which the C library knows. */
static void asks_for_the_heap(void)
{
    unsigned char *end = sbrk(0);
    CHECK((unsigned char *)syscall(SYS_brk, 0l) == end);
    CHECK((unsigned char *)syscall(SYS_brk, end) == end);
    CHECK((unsigned char *)syscall(SYS_brk, -1l) == end);
    CHECK(brk((void *)-1l) == -1 && errno == ENOMEM);
}

int main(void)
{
    shortens_the_heap();
    for (int round = 0; round < 2; round++) {
        maps_over();
        gives_back(round);
    }
    asks_for_the_heap();
    return 0;
}
