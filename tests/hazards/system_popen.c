/* system() and popen() with command and data in absent memory. */
#include "hazard.h"

int main(void)
{
    size_t bytes = 4 * QUARTER;
    unsigned char *at = map(bytes), *back = map(bytes);
    fill(at, bytes, 1);
    char *command = strcpy(map(64 * KIB), "exit 7");
    churn();
    int status = system(command);
    CHECKF(WIFEXITED(status) && WEXITSTATUS(status) == 7, "system returned %#x", (unsigned)status);

    char name[64];
    sprintf(name, "hazard-popen-%d.tmp", (int)getpid());
    sprintf(command, "cat > %s", name);
    churn();
    FILE *pipe = popen(command, "w");
    CHECK(pipe);
    CHECK(fwrite(at, 1, bytes, pipe) == bytes); /* whole buffers go to write(2) directly */
    CHECK(pclose(pipe) == 0);
    sprintf(command, "cat %s && rm %s", name, name);
    churn();
    pipe = popen(command, "r");
    CHECK(pipe);
    CHECK(fread(back, 1, bytes, pipe) == bytes);
    CHECK(pclose(pipe) == 0);
    churn();
    verify(back, bytes, 1);
    verify(at, bytes, 1);
    return 0;
}
