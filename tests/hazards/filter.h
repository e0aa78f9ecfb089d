/* What hazards share that put themselves under a filter on system calls (seccomp). */
#ifndef FILTER_H
#define FILTER_H

#include "hazard.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

/* A filter's parts: the number of the call is looked at, then each of some calls has its own answer,
 * and all others have another one. */
#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define ANSWER(call, action)                                                   \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, action)
#define ALLOW(call) ANSWER(SYS_##call, SECCOMP_RET_ALLOW)
#define REFUSE(call) ANSWER(SYS_##call, SECCOMP_RET_ERRNO | EPERM)
#define KILL(call) ANSWER(SYS_##call, SECCOMP_RET_KILL_PROCESS)
#define OTHERWISE(action) BPF_STMT(BPF_RET | BPF_K, action)

/* The same as the kernel takes it. */
#define PROGRAM(code) {sizeof(code) / sizeof *(code), (struct sock_filter *)(code)}

/* The calling thread, and what it makes from here on, is under this filter; false where none is
 * allowed here. */
static inline bool set_filter(const struct sock_fprog *program)
{
    SYS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program) == 0;
}

#endif
