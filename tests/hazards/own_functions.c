/* A program that exports functions by the names of the C library's (the runner links it so that
 * other libraries see them): the loader binds every library's calls to the program's. None of these
 * may be called for Terrace's own work: it may expect something else of a function by the name
 * of `log`, and in the middle of the program's allocator it may wait for the lock of that. */
#include "own_allocator.h"
#include "allocations.h"

#define NEVER(name)                                                                  \
    __attribute__((noreturn, used)) void never_##name(void) __asm__(#name);          \
    void never_##name(void) { FAIL("the program's own `%s` is called", #name); }

/* Names that the program itself does not call by way of its libraries. */
NEVER(log)
NEVER(exp)
NEVER(pow)
NEVER(log1p)
NEVER(expm1)
NEVER(eventfd)
NEVER(ppoll)
NEVER(pwrite)
NEVER(fallocate)
NEVER(statx)
NEVER(stat64)
NEVER(fstat64)
NEVER(ftruncate64)
NEVER(open64)
NEVER(writev)
NEVER(readlink)
NEVER(sched_getaffinity)
NEVER(sched_setaffinity)
NEVER(sched_getcpu)
NEVER(clock_nanosleep)
NEVER(usleep)
NEVER(getrusage)
NEVER(getrlimit)
NEVER(prlimit)
NEVER(process_vm_readv)
NEVER(mincore)
NEVER(strerrordesc_np)
NEVER(__xpg_strerror_r)
NEVER(__cxa_thread_atexit_impl)
NEVER(__tls_get_addr)

static long checked(const char *name, long number, long a, long b, long c)
{
    CHECKF(atomic_load(&allocator_owner) != (pid_t)syscall(SYS_gettid),
           "the program's own `%s` is called inside its allocator", name);
    return syscall(number, a, b, c);
}
int close(int fd) { return (int)checked("close", SYS_close, fd, 0, 0); }
ssize_t read(int fd, void *to, size_t n) { return checked("read", SYS_read, fd, (long)to, (long)n); }

int main(void)
{
    allocations_all();
    return 0;
}
