/* A pipe between two threads, and between two processes, with absent buffers at
 * both ends: every byte arrives once and in order. */
#include "hazard.h"

static const size_t bytes = 4 * QUARTER;

static void send_all(int fd, const unsigned char *at)
{
    for (size_t done = 0; done < bytes;) {
        size_t want = 1 + mix(done) % 70000;
        if (want > bytes - done)
            want = bytes - done;
        done += (size_t)SYS(write(fd, at + done, want));
    }
}

static void receive_all(int fd, unsigned char *at)
{
    size_t done = 0;
    while (done < bytes) {
        size_t want = 1 + mix(done + 7) % 70000;
        long n = SYS(read(fd, at + done, want > bytes - done ? bytes - done : want));
        CHECKF(n > 0, "the pipe ended after %zu of %zu bytes", done, bytes);
        done += (size_t)n;
    }
}

struct job {
    int fd;
    unsigned char *at;
};
static void *sender(void *argument)
{
    struct job *job = argument;
    send_all(job->fd, job->at);
    return NULL;
}

int main(void)
{
    unsigned char *out = map(bytes), *in = map(bytes);
    fill(out, bytes, 1);
    for (int round = 0; round < 2; round++) {
        int *ends = map(64 * KIB); /* even pipe(2)'s own result goes to absent memory */
        churn();
        SYS(pipe(ends));
        if (round == 0) {
            struct job job = {ends[1], out};
            pthread_t thread;
            PTHREAD(pthread_create(&thread, NULL, sender, &job));
            receive_all(ends[0], in);
            PTHREAD(pthread_join(thread, NULL));
            SYS(close(ends[1]));
        } else {
            pid_t child = (pid_t)SYS(fork());
            if (child == 0) {
                churn();
                send_all(ends[1], out);
                _exit(0);
            }
            SYS(close(ends[1]));
            receive_all(ends[0], in);
            wait_ok(child);
        }
        char byte;
        CHECK(SYS(read(ends[0], &byte, 1)) == 0);
        SYS(close(ends[0]));
        churn();
        verify(in, bytes, 1);
        memset(in, 0, bytes);
    }
    return 0;
}
