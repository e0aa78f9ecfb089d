/* A debugger attaches to every thread of a program that faults all the time, as
 * gdb does, stops all of them, looks at their registers, and lets go. A thread that
 * waits for its page stops like any other, and the program goes on as if nothing
 * had been. */
#include "hazard.h"
#include <dirent.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>

enum { THREADS = 3, ROUNDS = 4, MOST = 64 };
static const size_t bytes = 6 * QUARTER;
static unsigned char *at;
static atomic_bool *over;

static void *walker(void *seed)
{
    /* Each thread has a part of its own, and adds to it where it walks. */
    size_t pages = bytes / PAGE / THREADS, first = (size_t)(uintptr_t)seed * pages;
    uint64_t sweeps = 0;
    do {
        for (size_t page = first; page < first + pages; page++) {
            uint64_t *word = (uint64_t *)(at + page * PAGE);
            CHECKF(*word == pattern(1, page, 0) + sweeps, "page %zu", page);
            *word += 1;
        }
        sweeps++;
    } while (!atomic_load(over) || sweeps < 2);
    for (size_t page = first; page < first + pages; page++)
        *(uint64_t *)(at + page * PAGE) -= sweeps;
    return NULL;
}

/* The threads of a process, at most MOST. */
static size_t threads_of(pid_t process, pid_t *threads)
{
    char path[64];
    sprintf(path, "/proc/%d/task", (int)process);
    DIR *tasks = opendir(path);
    CHECK(tasks);
    size_t count = 0;
    for (struct dirent *task; (task = readdir(tasks)) && count < MOST;)
        if (task->d_name[0] != '.')
            threads[count++] = atoi(task->d_name);
    closedir(tasks);
    return count;
}

int main(void)
{
    over = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(over != MAP_FAILED);
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        at = map(bytes);
        fill(at, bytes, 1);
        pthread_t threads[THREADS];
        for (uintptr_t i = 0; i < THREADS; i++)
            PTHREAD(pthread_create(&threads[i], NULL, walker, (void *)i));
        for (int i = 0; i < THREADS; i++)
            PTHREAD(pthread_join(threads[i], NULL));
        verify(at, bytes, 1);
        _exit(0);
    }
    /* What this process itself holds is to leave as well. */
    unsigned char *own = map(2 * QUARTER);
    fill(own, 2 * QUARTER, 3);
    for (int round = 0; round < ROUNDS; round++) {
        churn();
        pid_t threads[MOST];
        bool held[MOST];
        size_t count = threads_of(child, threads), seized = 0;
        for (size_t i = 0; i < count; i++) {
            /* A thread may have ended since. */
            held[i] = ptrace(PTRACE_SEIZE, threads[i], NULL, NULL) == 0;
            if (!held[i] && errno == EPERM && i == 0) {
                kill(child, SIGKILL);
                skip("ptrace is not permitted here");
            }
            seized += held[i];
            if (held[i] && ptrace(PTRACE_INTERRUPT, threads[i], NULL, NULL) == -1)
                CHECKF(errno == ESRCH, "PTRACE_INTERRUPT: %s", strerror(errno));
        }
        CHECK(seized > 0);
        for (size_t i = 0; i < count; i++) {
            int status;
            if (!held[i])
                continue;
            CHECKF(waitpid(threads[i], &status, __WALL) == threads[i], "waitpid: %s", strerror(errno));
            if (WIFEXITED(status)) {
                held[i] = false;
                continue;
            }
            struct user_regs_struct registers;
            if (ptrace(PTRACE_GETREGS, threads[i], NULL, &registers) == -1)
                CHECKF(errno == ESRCH, "PTRACE_GETREGS: %s", strerror(errno));
        }
        /* All of them stand still now. */
        usleep(3000);
        for (size_t i = 0; i < count; i++)
            if (held[i] && ptrace(PTRACE_DETACH, threads[i], NULL, NULL) == -1)
                CHECKF(errno == ESRCH, "PTRACE_DETACH: %s", strerror(errno));
        usleep(2000);
    }
    atomic_store(over, true);
    wait_ok(child);
    verify(own, 2 * QUARTER, 3);
    return 0;
}
