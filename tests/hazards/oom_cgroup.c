/* A memory control group that is too small: who outgrows it is killed by the kernel,
 * or stays within it because what it holds compresses. It never hangs and never sees
 * wrong content, and its siblings go on. */
#include "hazard.h"

static const char *const VERSIONS[2][2] = {
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
    {"/sys/fs/cgroup", "memory.max"},
};
static char group[128];
static atomic_bool *over;

static int write_to(const char *file, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", group, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd == -1)
        return -1;
    ssize_t n = write(fd, text, strlen(text));
    close(fd);
    return n < 0 ? -1 : 0;
}

static void leave_nothing(void)
{
    for (int i = 0; i < 1000 && rmdir(group) == -1 && errno == EBUSY; i++)
        usleep(10000);
}

static void make_group(const char *limit)
{
    for (int i = 0; i < 2; i++) {
        snprintf(group, sizeof group, "%s/hazard-oom-%d", VERSIONS[i][0], (int)getpid());
        if (mkdir(group, 0755) == 0) {
            if (write_to(VERSIONS[i][1], limit) == 0) {
                /* Where there is swap it is not to help. */
                write_to(i ? "memory.swap.max" : "memory.swappiness", "0");
                return;
            }
            rmdir(group);
        }
    }
    skip("no memory control group can be made here");
}

static pid_t start(void (*body)(void), bool inside)
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        char self[16];
        sprintf(self, "%d", (int)getpid());
        if (inside)
            CHECK(write_to("cgroup.procs", self) == 0);
        body();
        _exit(0);
    }
    return child;
}

/* Four times the group's limit, of which little compresses. */
static void grows(void)
{
    size_t bytes = 64 * MIB;
    uint64_t *words = map(bytes), random = 1;
    for (size_t i = 0; i < bytes / 8; i += 2)
        words[i] = random = mix(random);
    random = 1;
    for (size_t i = 0; i < bytes / 8; i += 2)
        CHECK(words[i] == (random = mix(random)) && words[i + 1] == 0);
}

/* Little, over and over until told to stop. */
static void stays(void)
{
    size_t bytes = 2 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 2);
    do {
        churn();
        verify(at, bytes, 2);
    } while (!atomic_load(over));
}

int main(void)
{
    size_t bytes = 4 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    churn();
    make_group("16777216");
    over = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(over != MAP_FAILED);
    pid_t inside = start(stays, true);
    pid_t outside = start(stays, false);
    pid_t large = start(grows, true);
    int status;
    CHECK(waitpid(large, &status, 0) == large);
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    bool survived = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    CHECKF(killed || survived, "status %#x of who was too large", status);
    CHECK(waitpid(outside, &status, WNOHANG) == 0);
    atomic_store(over, true);
    wait_ok(outside);
    /* While the memory of who was killed is on its way back, the kernel does not count
     * it as a victim any more, and may kill whoever asks for memory in the group. */
    CHECK(waitpid(inside, &status, 0) == inside);
    killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    survived = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    CHECKF(killed || survived, "status %#x of its sibling in the group", status);
    leave_nothing();
    verify(at, bytes, 1);
    return 0;
}
