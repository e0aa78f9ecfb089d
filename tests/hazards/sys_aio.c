/* Linux AIO (io_submit): control blocks, events and buffers in absent memory. */
#include "hazard.h"
#include <linux/aio_abi.h>

enum { REQUESTS = 32 };

int main(void)
{
    size_t block = 16 * KIB, bytes = REQUESTS * block;
    int fd = temp_file();
    unsigned char *out = map(bytes), *in = map(bytes);
    aio_context_t *context = map(64 * KIB);
    struct iocb *controls = map(64 * KIB), **list = map(64 * KIB);
    struct io_event *events = map(64 * KIB);
    fill(out, bytes, 1);
    churn();
    if (syscall(SYS_io_setup, REQUESTS, context) == -1) {
        CHECKF(errno == ENOSYS || errno == EAGAIN, "io_setup: %s", strerror(errno));
        skip("this kernel has no AIO to give");
    }
    for (int pass = 0; pass < 3; pass++) {
        for (int i = 0; i < REQUESTS; i++) {
            memset(&controls[i], 0, sizeof controls[i]);
            controls[i].aio_lio_opcode = pass ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE;
            controls[i].aio_fildes = (uint32_t)fd;
            controls[i].aio_buf = (uintptr_t)((pass ? in : out) + (size_t)i * block);
            controls[i].aio_nbytes = block;
            controls[i].aio_offset = (int64_t)((size_t)i * block);
            list[i] = &controls[i];
        }
        if (pass == 2)
            memset(in, 0, bytes);
        if (pass != 1)
            churn(); /* pass 1 reads into memory that was never touched */
        for (int sent = 0; sent < REQUESTS;)
            sent += (int)SYS(syscall(SYS_io_submit, *context, (long)(REQUESTS - sent), list + sent));
        churn();
        for (int done = 0; done < REQUESTS;) {
            long n = SYS(syscall(SYS_io_getevents, *context, 1L, (long)(REQUESTS - done), events + done, NULL));
            for (long i = done; i < done + n; i++)
                CHECKF(events[i].res == (int64_t)block, "a request gives %lld", (long long)events[i].res);
            done += (int)n;
        }
        if (pass) {
            churn();
            verify(in, bytes, 1);
        }
    }
    SYS(syscall(SYS_io_destroy, *context));
    return 0;
}
