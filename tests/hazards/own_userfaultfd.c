/* A program that uses userfaultfd itself, on its own ordinary memory: the
 * kernel gives a range to one descriptor only. */
#include "hazard.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>

static int faults;
static unsigned char *at;
static const size_t bytes = 1 * QUARTER;

static void *server(void *argument)
{
    (void)argument;
    static unsigned char page[4096] __attribute__((aligned(4096)));
    for (size_t served = 0; served < bytes / PAGE; served++) {
        struct uffd_msg message;
        read_all(faults, &message, sizeof message);
        CHECK(message.event == UFFD_EVENT_PAGEFAULT);
        size_t index = (message.arg.pagefault.address - (uintptr_t)at) / PAGE;
        fill_from(page, PAGE, 6, index);
        struct uffdio_copy copy = {.dst = (uintptr_t)at + index * PAGE, .src = (uintptr_t)page, .len = PAGE};
        SYS(ioctl(faults, UFFDIO_COPY, &copy));
    }
    return NULL;
}

int main(void)
{
    faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (faults == -1)
        skip("userfaultfd is not allowed here");
    struct uffdio_api api = {.api = UFFD_API};
    SYS(ioctl(faults, UFFDIO_API, &api));
    at = map(bytes);
    struct uffdio_register range = {.range = {(uintptr_t)at, bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    SYS(ioctl(faults, UFFDIO_REGISTER, &range));
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, server, NULL));
    verify(at, bytes, 6);
    PTHREAD(pthread_join(thread, NULL));
    churn();
    verify(at, bytes, 6);
    SYS(munmap(at, bytes));
    return 0;
}
