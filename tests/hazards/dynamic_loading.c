/* Libraries are loaded and unloaded while memory is evicted: the loader maps and
 * unmaps at addresses of its own choice. */
#include "hazard.h"
#include <dlfcn.h>

int main(void)
{
    size_t bytes = 4 * QUARTER;
    unsigned char *at = map(bytes);
    fill(at, bytes, 1);
    for (int round = 0; round < 4; round++) {
        churn();
        char *name = strcpy(map(64 * KIB), round % 2 ? "libm.so.6" : "libresolv.so.2");
        churn();
        void *library = dlopen(name, RTLD_NOW);
        CHECKF(library, "dlopen: %s", dlerror());
        if (round % 2) {
            double (*cosine)(double) = (double (*)(double))dlsym(library, "cos");
            CHECK(cosine && cosine(0.0) == 1.0);
        }
        verify(at, bytes, 1);
        CHECK(dlclose(library) == 0);
        verify(at, bytes, 1);
        SYS(munmap(name, 64 * KIB));
    }
    CHECK(dlopen("/nonexistent/library.so", RTLD_NOW) == NULL && dlerror());
    /* A second copy of the C library in a namespace of its own: its calls are
     * seen by no preloaded wrapper. */
    void *copy = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
    if (copy) {
        void *(*other_malloc)(size_t) = (void *(*)(size_t))dlsym(copy, "malloc");
        void (*other_free)(void *) = (void (*)(void *))dlsym(copy, "free");
        CHECK(other_malloc && other_free);
        unsigned char *block = other_malloc(2 * QUARTER);
        CHECK(block);
        fill_bytes(block, 2 * QUARTER, 5);
        churn();
        verify_bytes(block, 2 * QUARTER, 5);
        other_free(block);
        dlclose(copy);
    }
    verify(at, bytes, 1);
    return 0;
}
