/* Coroutines whose stacks stand in absent memory, switched without the kernel's
 * or the C library's thread code. */
#include "hazard.h"
#include <ucontext.h>

enum { COROUTINES = 24, STACK = 128 * 1024, STEPS = 4 };
static ucontext_t scheduler, coroutine[COROUTINES];
static int finished;

static void body(int id)
{
    volatile uint64_t local[2000];
    for (int i = 0; i < 2000; i++)
        local[i] = mix((uint64_t)(id * 10000 + i));
    for (int step = 0; step < STEPS; step++) {
        SYS(swapcontext(&coroutine[id], &scheduler));
        for (int i = 0; i < 2000; i++)
            CHECKF(local[i] == mix((uint64_t)(id * 10000 + i)) + (uint64_t)step,
                   "coroutine %d step %d word %d", id, step, i);
        for (int i = 0; i < 2000; i++)
            local[i] += 1;
    }
    finished++;
}

int main(void)
{
    unsigned char *stacks = map((size_t)COROUTINES * STACK);
    for (int id = 0; id < COROUTINES; id++) {
        SYS(getcontext(&coroutine[id]));
        coroutine[id].uc_stack.ss_sp = stacks + (size_t)id * STACK;
        coroutine[id].uc_stack.ss_size = STACK;
        coroutine[id].uc_link = &scheduler;
        makecontext(&coroutine[id], (void (*)(void))body, 1, id);
    }
    for (int step = 0; step <= STEPS; step++) {
        for (int id = 0; id < COROUTINES; id++)
            SYS(swapcontext(&scheduler, &coroutine[id]));
        churn();
    }
    CHECK(finished == COROUTINES);
    return 0;
}
