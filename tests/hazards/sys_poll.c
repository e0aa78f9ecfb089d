/* poll, ppoll, select, pselect and epoll with their sets and events in absent
 * memory, also while they sleep. */
#include "hazard.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>

static int pipes[8][2];

static void *poker(void *argument)
{
    churn(); /* the sleeper's structures are evicted under it */
    write_all(pipes[(intptr_t)argument][1], "x", 1);
    return NULL;
}
static void poke(intptr_t which, pthread_t *thread)
{
    PTHREAD(pthread_create(thread, NULL, poker, (void *)which));
}
static void drain(int which)
{
    char byte;
    read_all(pipes[which][0], &byte, 1);
}

int main(void)
{
    for (int i = 0; i < 8; i++)
        SYS(pipe2(pipes[i], O_CLOEXEC));
    pthread_t thread;
    struct pollfd *set = (struct pollfd *)((char *)map(64 * KIB) + PAGE - 3 * sizeof *set);
    for (int i = 0; i < 8; i++)
        set[i] = (struct pollfd){.fd = pipes[i][0], .events = POLLIN};
    poke(5, &thread);
    CHECK(SYS(poll(set, 8, 20000)) == 1);
    PTHREAD(pthread_join(thread, NULL));
    for (int i = 0; i < 8; i++)
        CHECK(set[i].revents == (i == 5 ? POLLIN : 0));
    drain(5);

    struct timespec *wait = map(64 * KIB);
    sigset_t *mask = map(64 * KIB);
    wait->tv_sec = 20;
    poke(2, &thread);
    CHECK(SYS(ppoll(set, 8, wait, mask)) == 1 && set[2].revents == POLLIN);
    PTHREAD(pthread_join(thread, NULL));
    drain(2);

    fd_set *reads = (fd_set *)((char *)map(64 * KIB) + PAGE - 8);
    struct timeval *limit = map(64 * KIB);
    int highest = 0;
    for (int i = 0; i < 8; i++) {
        FD_SET(pipes[i][0], reads);
        highest = pipes[i][0] > highest ? pipes[i][0] : highest;
    }
    limit->tv_sec = 20;
    poke(7, &thread);
    CHECK(SYS(select(highest + 1, reads, NULL, NULL, limit)) == 1);
    PTHREAD(pthread_join(thread, NULL));
    for (int i = 0; i < 8; i++)
        CHECK(!FD_ISSET(pipes[i][0], reads) == (i != 7));
    CHECK(limit->tv_sec >= 1 && limit->tv_sec < 20);
    drain(7);
    for (int i = 0; i < 8; i++)
        FD_SET(pipes[i][0], reads);
    poke(0, &thread);
    CHECK(SYS(pselect(highest + 1, reads, NULL, NULL, wait, mask)) == 1 && FD_ISSET(pipes[0][0], reads));
    PTHREAD(pthread_join(thread, NULL));
    drain(0);

    int epoll = (int)SYS(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event *event = map(64 * KIB);
    for (int i = 0; i < 8; i++) {
        event->events = EPOLLIN;
        event->data.u64 = 100 + (uint64_t)i;
        if (i % 4 == 0)
            churn();
        SYS(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[i][0], event));
    }
    for (intptr_t i = 0; i < 4; i++) {
        struct epoll_event *events = (struct epoll_event *)((char *)map(64 * KIB) + PAGE - 6);
        poke(i, &thread);
        CHECK(SYS(epoll_wait(epoll, events, 8, 20000)) == 1);
        CHECKF(events[0].events == EPOLLIN && events[0].data.u64 == 100 + (uint64_t)i,
               "event %#x %llu", events[0].events, (unsigned long long)events[0].data.u64);
        PTHREAD(pthread_join(thread, NULL));
        drain((int)i);
    }
    int counter = (int)SYS(eventfd(0, EFD_CLOEXEC));
    uint64_t *value = map(64 * KIB);
    *value = 7;
    churn();
    write_all(counter, value, 8);
    *value = 0;
    churn();
    read_all(counter, value, 8);
    CHECK(*value == 7);
    return 0;
}
