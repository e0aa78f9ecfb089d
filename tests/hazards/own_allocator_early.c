/* The same before `main`, where the loader has a lock, and in a child that was forked before there
 * was anything to manage; while other threads load libraries, for which the loader allocates with
 * its lock held. */
#include "own_allocator.h"
#include "allocations.h"
#include <dlfcn.h>

static struct held early;

__attribute__((constructor(102))) static void before_main(void)
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        allocations_all();
        _exit(0);
    }
    wait_ok(child);
    allocations_make(&early, 7);
}

static atomic_bool stop;

static void *load(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop)) {
        void *library = dlopen("libutil.so.1", RTLD_NOW);
        if (library)
            dlclose(library);
        CHECK(!dlsym(RTLD_DEFAULT, "no such function") && dlerror());
    }
    return NULL;
}

static void while_loading(void)
{
    pthread_t loads;
    atomic_store(&stop, false);
    PTHREAD(pthread_create(&loads, NULL, load, NULL));
    struct held held;
    allocations_make(&held, 11);
    allocations_verify(&held, 11);
    allocations_free(&held);
    atomic_store(&stop, true);
    PTHREAD(pthread_join(loads, NULL));
}

int main(void)
{
    allocations_verify(&early, 7);
    while_loading();
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        while_loading();
        allocations_verify(&early, 7);
        _exit(0);
    }
    wait_ok(child);
    allocations_all();
    allocations_verify(&early, 7);
    return 0;
}
