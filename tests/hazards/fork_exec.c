/* A forked child executes another program: path, arguments and environment
 * stand in memory that is absent at that moment. The new program gets them
 * whole, and runs with or without the preload in its environment. */
#include "hazard.h"

/* Strings and the vector of pointers to them, all in fresh memory. */
static char **managed_vector(size_t count, size_t length)
{
    char **vector = map((count + 1) * sizeof *vector + count * (length + 32) + PAGE);
    char *text = (char *)(vector + count + 1);
    for (size_t i = 0; i < count; i++) {
        vector[i] = text;
        int n = sprintf(text, "V%zu=", i);
        memset(text + n, 'a' + (int)(i % 26), length);
        text += (size_t)n + length + 1;
    }
    vector[count] = NULL;
    return vector;
}

static int as_child(int argc, char **argv)
{
    CHECKF(argc == 42, "%d arguments arrived", argc);
    for (int i = 2; i < 42; i++) {
        CHECKF(strlen(argv[i]) > 3000, "argument %d has %zu bytes", i, strlen(argv[i]));
        CHECK(strspn(strchr(argv[i], '=') + 1, (char[]){(char)('a' + (i - 2) % 26), 0}) == 3000);
    }
    const char *value = getenv("V7");
    CHECK(value && strlen(value) == 2000 && value[0] == 'h' && value[1999] == 'h');
    unsigned char *at = map(6 * QUARTER);
    fill(at, 6 * QUARTER, 4);
    churn();
    verify(at, 6 * QUARTER, 4);
    return 0;
}

int main(int argc, char **argv, char **environment)
{
    if (argc > 1 && strcmp(argv[1], "child") == 0)
        return as_child(argc, argv);
    char *path = map(64 * KIB);
    CHECK(SYS(readlink("/proc/self/exe", path, 4096)) < 4096);
    char **strings = managed_vector(40, 3000), **more = managed_vector(30, 2000);
    char **arguments = map(64 * KIB), **inherited = map(256 * KIB);
    arguments[0] = path;
    arguments[1] = strcpy(map(64 * KIB), "child");
    memcpy(arguments + 2, strings, 41 * sizeof *strings);
    for (int with_environment = 0; with_environment < 2; with_environment++) {
        size_t n = 0;
        for (; n < 30; n++)
            inherited[n] = more[n];
        for (char **e = environment; with_environment && *e; e++)
            inherited[n++] = *e;
        inherited[n] = NULL;
        churn();
        churn();
        pid_t child = (pid_t)SYS(fork());
        if (child == 0) {
            execve(path, arguments, inherited);
            FAIL("execve: %s", strerror(errno));
        }
        wait_ok(child);
    }
    /* An exec that fails leaves everything as it was. */
    churn();
    CHECK(execve("/nonexistent/program", arguments, inherited) == -1 && errno == ENOENT);
    CHECK(strcmp(arguments[1], "child") == 0);
    return 0;
}
