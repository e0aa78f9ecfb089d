/* posix_spawn with path, arguments and environment in absent memory: the C
 * library does this with clone(CLONE_VM|CLONE_VFORK), not with fork. */
#include "hazard.h"
#include <spawn.h>

int main(int argc, char **argv, char **environment)
{
    if (argc == 12) {
        for (int i = 1; i < 12; i++)
            CHECK(strlen(argv[i]) == (size_t)i * 1000);
        CHECK(getenv("SPAWNED"));
        return 4;
    }
    unsigned char *at = map(6 * QUARTER);
    fill(at, 6 * QUARTER, 1);
    char *path = map(64 * KIB);
    CHECK(SYS(readlink("/proc/self/exe", path, 4096)) < 4096);
    char **arguments = map(64 * KIB), **variables = map(256 * KIB);
    arguments[0] = path;
    for (int i = 1; i < 12; i++)
        arguments[i] = memset(map(64 * KIB), 'x', (size_t)i * 1000);
    size_t n = 0;
    for (char **e = environment; *e; e++)
        variables[n++] = strcpy(map(64 * KIB), *e);
    variables[n++] = strcpy(map(64 * KIB), "SPAWNED=1");
    for (int round = 0; round < 3; round++) {
        churn();
        pid_t child;
        PTHREAD(posix_spawn(&child, path, NULL, NULL, arguments, variables));
        wait_exit(child, 4);
        PTHREAD(posix_spawnp(&child, "true", NULL, NULL, (char *[]){"true", NULL}, variables));
        wait_ok(child);
    }
    pid_t child;
    CHECK(posix_spawn(&child, "/nonexistent/program", NULL, NULL, arguments, variables) == ENOENT);
    verify(at, 6 * QUARTER, 1);
    return 0;
}
