/* The signal stack stands in absent memory: the kernel itself writes the frame
 * there, and the handler runs on it. */
#include "hazard.h"
#include <setjmp.h>

static unsigned char *other;
static const size_t bytes = 4 * QUARTER;
static volatile int handled;
static unsigned char *stack_low, *stack_high;
static sigjmp_buf out;

static void on_signal(int signal, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    unsigned char frame[20000];
    CHECKF(frame > stack_low && frame < stack_high, "signal %d is not handled on its stack", signal);
    fill_bytes(frame, sizeof frame, (uint64_t)signal);
    verify_from(other + 64 * PAGE, 64 * PAGE, 1, 64); /* faults while on the signal stack */
    verify_bytes(frame, sizeof frame, (uint64_t)signal);
    handled++;
    if (signal == SIGSEGV)
        siglongjmp(out, 1);
}

static uint64_t overflow(uint64_t depth)
{
    volatile char frame[4096];
    frame[0] = (char)depth;
    return depth > 1ull << 40 ? 0 : overflow(depth + 1) + (uint64_t)frame[0];
}

static void *overflowing(void *argument)
{
    (void)argument;
    stack_t stack = {.ss_sp = stack_low, .ss_size = (size_t)(stack_high - stack_low)};
    SYS(sigaltstack(&stack, NULL));
    if (sigsetjmp(out, 1) == 0)
        return (void *)(uintptr_t)overflow(0);
    return (void *)1;
}

int main(void)
{
    other = map(bytes);
    fill(other, bytes, 1);
    size_t size = 256 * KIB;
    stack_low = map(size);
    stack_high = stack_low + size;
    stack_t *stack = map(64 * KIB);
    *stack = (stack_t){.ss_sp = stack_low, .ss_size = size};
    churn();
    SYS(sigaltstack(stack, NULL));
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    SYS(sigaction(SIGUSR1, &action, NULL));
    SYS(sigaction(SIGSEGV, &action, NULL));
    for (int round = 1; round <= 4; round++) {
        if (round == 3)
            SYS(madvise(stack_low, size, MADV_DONTNEED)); /* as if never touched */
        churn();
        CHECK(raise(SIGUSR1) == 0);
        CHECK(handled == round);
    }
    /* A thread overflows its stack; only the signal stack is left to say so. */
    handled = 0;
    stack->ss_flags = SS_DISABLE;
    SYS(sigaltstack(stack, NULL));
    pthread_attr_t attributes;
    PTHREAD(pthread_attr_init(&attributes));
    PTHREAD(pthread_attr_setstacksize(&attributes, 256 * KIB));
    for (int round = 1; round <= 2; round++) {
        churn();
        pthread_t thread;
        void *result;
        PTHREAD(pthread_create(&thread, &attributes, overflowing, NULL));
        PTHREAD(pthread_join(thread, &result));
        CHECK(result == (void *)1 && handled == round);
    }
    churn();
    verify(other, bytes, 1);
    return 0;
}
