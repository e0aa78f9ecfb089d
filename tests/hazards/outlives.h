/* What hazards share in which a process has another's memory (clone with CLONE_VM), and goes on with it
 * when the other is gone. */
#ifndef OUTLIVES_H
#define OUTLIVES_H

#include "hazard.h"
#include <sched.h>

static const size_t bytes = 6 * QUARTER;
/* Filled with the pattern of seed 1 before there is a second process. */
static unsigned char *at;
/* Of the first pipe the process that ends has the end for writing: who reads it sees nothing until
 * that one is gone. Through the second one the other says that all was right. */
static int ended[2], checked[2];

/* A process with the memory of the calling one. There is one stack: for one process at a time. */
static inline pid_t clone_vm(int (*entry)(void *), void *argument, int flags)
{
    static char stack[64 * KIB] __attribute__((aligned(64)));
    return (pid_t)SYS(clone(entry, stack + sizeof stack, CLONE_VM | SIGCHLD | flags, argument));
}

/* What such a process does that outlives the other: it finds all that was there, and has more. */
static int goes_on(void *argument)
{
    (void)argument;
    char byte;
    close(ended[1]);
    /* Until the other is gone. */
    CHECK(read(ended[0], &byte, 1) == 0);
    usleep(20000);
    verify(at, bytes, 1);
    unsigned char *more = map(4 * QUARTER);
    fill(more, 4 * QUARTER, 2);
    verify(more, 4 * QUARTER, 2);
    CHECK(write(checked[1], "k", 1) == 1);
    syscall(SYS_exit_group, 0);
    return 0;
}

#endif
