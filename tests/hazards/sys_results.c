/* Small results that the kernel writes into absent or untouched memory: stat,
 * getcwd, readlink, getdents64, getrandom, clocks, limits and so on. */
#include "hazard.h"
#include <dirent.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/timerfd.h>
#include <sys/utsname.h>
#include <time.h>

/* A place that the kernel finds absent: fresh in the first round, evicted in
 * the second; near the end of a page, so that results cross into the next. */
enum { PLACES = 40, ROOM = 32 };
static unsigned char *room;
static int place;
static void *next(void)
{
    CHECK(place < PLACES);
    return room + (size_t)place++ * ROOM * PAGE + PAGE - 8;
}

int main(void)
{
    room = map(PLACES * ROOM * PAGE);
    struct stat plain;
    SYS(stat("/", &plain));
    char cwd[4096];
    CHECK(getcwd(cwd, sizeof cwd));
    for (int round = 0; round < 2; round++) {
        if (round)
            churn();
        place = 0;
        struct stat *st = next();
        SYS(stat("/", st));
        CHECK(st->st_ino == plain.st_ino && st->st_mode == plain.st_mode);
        st = next();
        int null = (int)SYS(open("/dev/null", O_RDONLY | O_CLOEXEC));
        SYS(fstat(null, st));
        CHECK(S_ISCHR(st->st_mode));
        SYS(close(null));
        st = next();
        SYS(lstat("/proc/self/exe", st));
        CHECK(S_ISLNK(st->st_mode));
        struct statx *sx = next();
        SYS(statx(AT_FDCWD, "/", 0, STATX_BASIC_STATS, sx));
        CHECK(sx->stx_ino == plain.st_ino);
        char *text = next();
        CHECK(getcwd(text, 4096) == text && strcmp(text, cwd) == 0);
        text = next();
        CHECK(SYS(syscall(SYS_getcwd, text, 4096)) == (long)strlen(cwd) + 1 && strcmp(text, cwd) == 0);
        text = next();
        CHECK(SYS(readlink("/proc/self/exe", text, 4096)) > 0 && text[0] == '/');
        text = next();
        CHECK(SYS(readlinkat(AT_FDCWD, "/proc/self/exe", text, 4096)) > 0 && text[0] == '/');
        unsigned char *random = next();
        CHECK(SYS(getrandom(random, 20 * PAGE, 0)) == 20 * (long)PAGE);
        size_t zeros = 0;
        for (size_t i = 0; i < 20 * PAGE; i++)
            zeros += random[i] == 0;
        CHECKF(zeros > 150 && zeros < 600, "%zu zero bytes among 81920 random ones", zeros);
        random = next();
        CHECK(getentropy(random, 256) == 0);
        int dir = (int)SYS(open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        text = next();
        long n = SYS(syscall(SYS_getdents64, dir, text, 5 * PAGE));
        CHECK(n > 200);
        bool found = false;
        for (long at = 0; at < n;) {
            struct dirent64 *entry = (struct dirent64 *)(text + at);
            found |= strcmp(entry->d_name, "status") == 0;
            CHECK(entry->d_reclen > 0);
            at += entry->d_reclen;
        }
        CHECKF(found, "no `status` among /proc/self");
        SYS(close(dir));
        struct statfs *fs = next();
        SYS(statfs("/proc", fs));
        CHECK(fs->f_type == 0x9fa0);
        struct utsname *name = next();
        SYS(uname(name));
        CHECK(strcmp(name->sysname, "Linux") == 0);
        struct timespec *now = next();
        SYS(clock_gettime(CLOCK_MONOTONIC, now));
        CHECK(now->tv_sec > 0 || now->tv_nsec > 0);
        now = next();
        SYS(syscall(SYS_clock_gettime, CLOCK_REALTIME, now));
        CHECK(now->tv_sec > 1000000000);
        struct timeval *day = next();
        SYS(gettimeofday(day, NULL));
        CHECK(day->tv_sec > 1000000000);
        struct rusage *usage = next();
        SYS(getrusage(RUSAGE_SELF, usage));
        CHECK(usage->ru_maxrss > 0);
        struct rlimit *limit = next();
        SYS(getrlimit(RLIMIT_NOFILE, limit));
        CHECK(limit->rlim_cur > 0);
        limit = next();
        SYS(prlimit(0, RLIMIT_STACK, NULL, limit));
        CHECK(limit->rlim_cur > 0);
        struct sysinfo *info = next();
        SYS(sysinfo(info));
        CHECK(info->totalram > 0);
        struct tms *tms = next();
        SYS(times(tms));
        cpu_set_t *cpus = next();
        SYS(sched_getaffinity(0, sizeof *cpus, cpus));
        CHECK(CPU_COUNT(cpus) > 0);
        unsigned *cpu = next();
        SYS(syscall(SYS_getcpu, cpu, NULL, NULL));
        struct timespec *rest = next();
        rest->tv_sec = 0, rest->tv_nsec = 1000;
        SYS(nanosleep(rest, rest));
        struct itimerspec *timer = next();
        int timer_fd = (int)SYS(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
        timer->it_value.tv_nsec = 1000000;
        timer->it_interval.tv_sec = 0;
        SYS(timerfd_settime(timer_fd, 0, timer, NULL));
        uint64_t *expirations = next();
        read_all(timer_fd, expirations, 8);
        CHECK(*expirations >= 1);
        SYS(close(timer_fd));
        siginfo_t *result = next();
        pid_t child = (pid_t)SYS(fork());
        if (child == 0)
            _exit(33);
        SYS(waitid(P_PID, (id_t)child, result, WEXITED | WNOWAIT));
        CHECK(result->si_status == 33);
        int *status = next();
        CHECK(SYS(waitpid(child, status, 0)) == child && WEXITSTATUS(*status) == 33);
        CHECK(*(uint64_t *)(room + (size_t)place * ROOM * PAGE + PAGE - 8) == 0);
    }
    return 0;
}
