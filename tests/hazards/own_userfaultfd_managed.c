/* A program that uses userfaultfd itself, on memory that is managed already and has partly left:
 * it must get it, with what is in it, and the rest of its memory must stay what it is. */
#include "hazard.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

static int faults;
static unsigned char *at;
static const size_t bytes = 4 * QUARTER;

static void *server(void *argument)
{
    (void)argument;
    static unsigned char page[4096] __attribute__((aligned(4096)));
    for (size_t served = 0; served < bytes / 2 / PAGE; served++) {
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
    unsigned char *other = map(8 * QUARTER);
    fill(other, 8 * QUARTER, 1);
    at = map(bytes);
    fill(at, bytes, 2);
    churn();

    struct uffdio_register range = {.range = {(uintptr_t)at, bytes}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    SYS(ioctl(faults, UFFDIO_REGISTER, &range));
    verify(at, bytes, 2);
    /* What is discarded the program fills itself. */
    SYS(madvise(at, bytes / 2, MADV_DONTNEED));
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, server, NULL));
    verify(at, bytes / 2, 6);
    PTHREAD(pthread_join(thread, NULL));
    verify_from(at + bytes / 2, bytes / 2, 2, bytes / 2 / PAGE);
    churn();
    verify(other, 8 * QUARTER, 1);

    /* What another of its own handles has, it does not get. */
    int second = (int)SYS(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
    api.features = 0;
    SYS(ioctl(second, UFFDIO_API, &api));
    CHECK(ioctl(second, UFFDIO_REGISTER, &range) == -1 && errno == EBUSY);
    return 0;
}
