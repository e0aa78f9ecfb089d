/* Small arguments that the kernel reads from absent memory: path names, times,
 * limits, signal sets, structures. */
#include "hazard.h"
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <time.h>

static char *name(const char *text)
{
    /* Across the border of two pages, so that both are absent. */
    char *at = map(64 * KIB) + PAGE - strlen(text) / 2;
    return strcpy(at, text);
}

int main(void)
{
    char base[64], text[128];
    sprintf(base, "hazard-arguments-%d", (int)getpid());
    char *dir = name(base);
    sprintf(text, "%s/a-file-with-a-rather-long-name", base);
    char *one = name(text);
    sprintf(text, "%s/the-name-it-gets-when-it-is-renamed", base);
    char *two = name(text);
    sprintf(text, "%s/link", base);
    char *link_name = name(text);
    struct timespec *times = map(64 * KIB);
    times[0].tv_sec = times[1].tv_sec = 1234567890;
    churn();
    SYS(mkdir(dir, 0700));
    int fd = (int)SYS(open(one, O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    SYS(close(fd));
    churn();
    SYS(rename(one, two));
    churn();
    SYS(symlink(two, link_name));
    churn();
    SYS(access(two, R_OK | W_OK));
    SYS(chmod(two, 0640));
    SYS(utimensat(AT_FDCWD, two, times, 0));
    struct stat st;
    churn();
    SYS(stat(two, &st));
    CHECK((st.st_mode & 0777) == 0640 && st.st_mtime == 1234567890);
    SYS(truncate(two, 77));
    churn();
    SYS(stat(two, &st));
    CHECK(st.st_size == 77);
    CHECK(access(one, F_OK) == -1 && errno == ENOENT);
    int watch = (int)SYS(inotify_init1(IN_CLOEXEC));
    churn();
    SYS(inotify_add_watch(watch, dir, IN_DELETE));
    SYS(unlink(two));
    char *event = map(64 * KIB);
    CHECK(SYS(read(watch, event, 4096)) > 0);
    CHECK(strcmp(((struct inotify_event *)event)->name, "the-name-it-gets-when-it-is-renamed") == 0);
    churn();
    SYS(unlink(link_name));
    SYS(rmdir(dir));

    sigset_t *set = map(64 * KIB), *old = map(64 * KIB);
    sigemptyset(set);
    sigaddset(set, SIGUSR1);
    churn();
    SYS(sigprocmask(SIG_BLOCK, set, old));
    CHECK(!sigismember(old, SIGUSR1));
    SYS(kill(getpid(), SIGUSR1));
    siginfo_t *info = map(64 * KIB);
    struct timespec *wait = map(64 * KIB);
    wait->tv_sec = 5;
    churn();
    CHECK(sigtimedwait(set, info, wait) == SIGUSR1 && info->si_signo == SIGUSR1);
    CHECK(SYS(sigpending(old)) == 0 && !sigismember(old, SIGUSR1));
    struct sigaction *action = map(64 * KIB), *previous = map(64 * KIB);
    action->sa_handler = SIG_IGN;
    churn();
    SYS(sigaction(SIGUSR1, action, previous));
    CHECK(previous->sa_handler == SIG_DFL);
    churn();
    SYS(sigaction(SIGUSR1, NULL, previous));
    CHECK(previous->sa_handler == SIG_IGN);

    struct rlimit *limit = map(64 * KIB);
    SYS(getrlimit(RLIMIT_NOFILE, limit));
    churn();
    SYS(setrlimit(RLIMIT_NOFILE, limit));
    struct itimerval *timer = map(64 * KIB);
    churn();
    SYS(setitimer(ITIMER_REAL, timer, timer + 1));
    char *thread_name = name("a-thread-name");
    churn();
    SYS(prctl(PR_SET_NAME, thread_name));
    char *read_back = map(64 * KIB);
    SYS(prctl(PR_GET_NAME, read_back));
    CHECK(strcmp(read_back, "a-thread-name") == 0);
    /* A path that runs into unmapped memory is EFAULT; a good one never is. */
    char *edge = map(64 * KIB);
    SYS(munmap(edge + 8 * PAGE, 8 * PAGE));
    memset(edge + 8 * PAGE - 4, 'x', 4);
    churn();
    CHECK(access(edge + 8 * PAGE - 4, F_OK) == -1 && errno == EFAULT);
    return 0;
}
