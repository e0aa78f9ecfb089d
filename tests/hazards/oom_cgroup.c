/* A memory control group that is too small: who outgrows it is killed by the kernel,
 * unless what is too much lies in a file. It never hangs and never sees wrong content,
 * nobody dies of anything but the kernel's choice, and a sibling outside goes on. */
#include "hazard.h"

/* Where groups are, which file is the limit, and which says how many were killed. */
static const char *const VERSIONS[2][3] = {
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"},
    {"/sys/fs/cgroup", "memory.max", "memory.events"},
};
static int version;
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

/* Processes of the group that the kernel has killed for want of memory. */
static long kernel_killed(void)
{
    char path[256], line[128];
    long count = -1;
    snprintf(path, sizeof path, "%s/%s", group, VERSIONS[version][2]);
    FILE *file = fopen(path, "r");
    CHECKF(file, "%s cannot be read", path);
    while (fgets(line, sizeof line, file))
        sscanf(line, "oom_kill %ld", &count);
    fclose(file);
    CHECKF(count != -1, "%s does not count kills", path);
    return count;
}

/* Waits for a child that ends well or is killed; whether it was. */
static bool was_killed(pid_t child, const char *who)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    CHECKF(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "status %#x of %s", status, who);
    return killed;
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
                version = i;
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

/* Four times the group's limit; compressed it is still twice that. */
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
    bool large_killed = was_killed(large, "who was too large");
    CHECK(waitpid(outside, &status, WNOHANG) == 0);
    atomic_store(over, true);
    wait_ok(outside);
    /* While the memory of who was killed is on its way back, the kernel does not count
     * it as a victim any more, and may kill whoever asks for memory in the group. Only
     * then: a sibling that dies before who is too large has died of something else. */
    bool inside_killed = was_killed(inside, "its sibling in the group");
    long kills = kernel_killed();
    CHECKF(large_killed + inside_killed <= kills, "%d were killed, %ld by the kernel",
           large_killed + inside_killed, kills);
    CHECKF(large_killed || is_spilled(), "four times the limit found room within it");
    CHECKF(large_killed || !inside_killed, "only the sibling was killed");
    leave_nothing();
    verify(at, bytes, 1);
    return 0;
}
