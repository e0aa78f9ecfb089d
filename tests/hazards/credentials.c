/* Changes of user and groups in a program with threads, at first with none of its
 * memory present: the C library has every thread take part, and waits for each. In
 * parents and children, on stacks of the program's own, with lists of groups that are
 * absent, and while other threads fault. */
#include "hazard.h"
#include <dirent.h>
#include <grp.h>

enum { GROUPS = 2000 };
static gid_t *list;
static unsigned char *at;
static const size_t bytes = 2 * QUARTER;
static bool root;

/* Every thread of the process, whoever made it, is the same user's. */
static void check_alike(void)
{
    char first[8192] = "";
    DIR *threads = opendir("/proc/self/task");
    CHECK(threads);
    for (struct dirent *entry; (entry = readdir(threads));) {
        if (entry->d_name[0] == '.')
            continue;
        char name[300], line[8192], all[8192] = "";
        snprintf(name, sizeof name, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = fopen(name, "r");
        if (!status && errno == ENOENT)
            continue; /* it has ended since */
        CHECK(status);
        bool is_kernels = false;
        while (fgets(line, sizeof line, status))
            if (!strncmp(line, "Name:\tiou-", 10))
                /* It runs nothing of the process's: each request has the user of who made it. */
                is_kernels = true;
            else if (!strncmp(line, "Uid:", 4) || !strncmp(line, "Gid:", 4) ||
                !strncmp(line, "Groups:", 7) || !strncmp(line, "CapEff:", 7))
                strncat(all, line, sizeof all - strlen(all) - 1);
        fclose(status);
        if (is_kernels)
            continue;
        if (!first[0])
            strcpy(first, all);
        CHECKF(!strcmp(first, all), "a thread is %.150s, another one %.150s", first, all);
    }
    closedir(threads);
}

/* What anybody may do: every thread makes the change all the same. */
static void change(void)
{
    uid_t user = getuid();
    gid_t group = getgid();
    SYS(setgid(group));
    SYS(setuid(user));
    SYS(setegid(group));
    SYS(seteuid(user));
    SYS(setregid(group, group));
    SYS(setreuid(user, user));
    SYS(setresgid(group, group, group));
    SYS(setresuid(user, user, user));
    CHECK(getuid() == user && geteuid() == user && getgid() == group);
    check_alike();
}

static void change_groups(void)
{
    if (!root)
        return;
    SYS(setgroups(GROUPS, list));
    static gid_t got[GROUPS];
    CHECK(SYS(getgroups(GROUPS, got)) == GROUPS);
    for (int i = 0; i < GROUPS; i++)
        CHECKF(got[i] == (gid_t)(1000 + i), "group %d is %u", i, got[i]);
    check_alike();
    errno = 0;
    CHECK(setgroups(GROUPS, (gid_t *)8) == -1 && errno == EFAULT);
    SYS(initgroups("root", 4242));
    int count = (int)SYS(getgroups(GROUPS, got));
    bool found = false;
    for (int i = 0; i < count; i++)
        found = found || got[i] == 4242;
    CHECK(found);
    check_alike();
    SYS(setgroups(0, NULL));
    check_alike();
}

static void all(void)
{
    churn();
    change_groups();
    change();
    churn();
    change();
}

static void *all_in_thread(void *unused)
{
    (void)unused;
    all();
    return NULL;
}

static pthread_barrier_t barrier;
static void *wait_for_end(void *unused)
{
    (void)unused;
    pthread_barrier_wait(&barrier);
    return NULL;
}

int main(void)
{
    root = geteuid() == 0;
    /* A thread of the program's own before anything is managed. */
    PTHREAD(pthread_barrier_init(&barrier, NULL, 2));
    pthread_t early, thread;
    PTHREAD(pthread_create(&early, NULL, wait_for_end, NULL));

    at = map(bytes);
    fill(at, bytes, 1);
    list = map(4 * PAGE);
    for (int i = 0; i < GROUPS; i++)
        list[i] = (gid_t)(1000 + i);
    all();

    /* On a stack that can be absent. */
    pthread_attr_t attributes;
    PTHREAD(pthread_attr_init(&attributes));
    PTHREAD(pthread_attr_setstack(&attributes, map(QUARTER), QUARTER));
    PTHREAD(pthread_create(&thread, &attributes, all_in_thread, NULL));
    PTHREAD(pthread_join(thread, NULL));

    /* While others fault. */
    struct churner churner;
    churner_start(&churner);
    for (int i = 0; i < 5; i++) {
        change_groups();
        change();
    }
    churner_stop(&churner);

    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        all();
        verify(at, bytes, 1);
        if (root) {
            SYS(setresgid(65534, 65534, 65534));
            SYS(setresuid(65534, 65534, 65534));
            CHECK(setuid(0) == -1);
            check_alike();
            root = false;
        }
        fill(at, bytes, 2);
        all();
        pid_t grandchild = (pid_t)SYS(fork());
        if (grandchild == 0) {
            all();
            verify(at, bytes, 2);
            _exit(0);
        }
        wait_ok(grandchild);
        verify(at, bytes, 2);
        _exit(0);
    }
    wait_ok(child);
    verify(at, bytes, 1);
    pthread_barrier_wait(&barrier);
    PTHREAD(pthread_join(early, NULL));
    return 0;
}
