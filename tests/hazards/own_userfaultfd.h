/* What hazards share that use userfaultfd themselves. */
#ifndef OWN_USERFAULTFD_H
#define OWN_USERFAULTFD_H

#include "hazard.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

/* A handle that may be used. */
static inline int open_userfaultfd(void)
{
    int handle = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    if (handle == -1)
        skip("userfaultfd is not allowed here");
    struct uffdio_api api = {.api = UFFD_API};
    SYS(ioctl(handle, UFFDIO_API, &api));
    return handle;
}

/* What register_for_missing returns is ioctl's. */
static inline int register_for_missing(int handle, void *at, size_t bytes)
{
    struct uffdio_register range = {.range = {(uintptr_t)at, bytes},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    return ioctl(handle, UFFDIO_REGISTER, &range);
}

/* Serves that many missing pages of a mapping with the pattern of seed 6. */
struct missing {
    int handle;
    unsigned char *at;
    size_t pages;
};

static inline void *serve_missing(void *argument)
{
    const struct missing *missing = argument;
    static unsigned char page[4096] __attribute__((aligned(4096)));
    for (size_t served = 0; served < missing->pages; served++) {
        struct uffd_msg message;
        read_all(missing->handle, &message, sizeof message);
        CHECK(message.event == UFFD_EVENT_PAGEFAULT);
        size_t index = (message.arg.pagefault.address - (uintptr_t)missing->at) / PAGE;
        fill_from(page, PAGE, 6, index);
        struct uffdio_copy copy = {
            .dst = (uintptr_t)missing->at + index * PAGE, .src = (uintptr_t)page, .len = PAGE};
        SYS(ioctl(missing->handle, UFFDIO_COPY, &copy));
    }
    return NULL;
}

#endif
