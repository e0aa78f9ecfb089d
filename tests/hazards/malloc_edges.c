/* The corners of the allocator: alignment, zero sizes, overflow, usable size,
 * reuse that calloc must clear. */
#include "hazard.h"
#include <malloc.h>

int main(void)
{
    free(NULL);
    void *nothing = malloc(0);
    free(nothing);
    nothing = calloc(0, 100);
    free(nothing);
    nothing = realloc(NULL, 100 * KIB);
    CHECK(nothing);
    free(nothing);
    volatile size_t huge = SIZE_MAX, half = SIZE_MAX / 2;
    errno = 0;
    CHECK(malloc(huge) == NULL && errno == ENOMEM);
    CHECK(malloc(half + 1) == NULL);
    CHECK(calloc(half, 3) == NULL);
    CHECK(calloc(huge, huge) == NULL);
    void *kept = malloc(MIB);
    memset(kept, 7, MIB);
    CHECK(realloc(kept, half + 1) == NULL && ((char *)kept)[MIB - 1] == 7); /* the old block stays */
    CHECK(reallocarray(kept, half, 4) == NULL && errno == ENOMEM);
    free(kept);

    static const size_t sizes[] = {1, 1000, 65535, 65536, 65537, 131072, 300000, 1 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t size = sizes[i];
        for (size_t alignment = 16; alignment <= MIB; alignment *= 4) {
            void *at = NULL;
            CHECK(posix_memalign(&at, alignment, size) == 0);
            CHECKF((uintptr_t)at % alignment == 0, "posix_memalign(%zu, %zu) gives %p", alignment, size, at);
            CHECK(malloc_usable_size(at) >= size);
            memset(at, 1, size);
            unsigned char *grown = realloc(at, size + 5000);
            CHECK(grown && grown[0] == 1 && grown[size - 1] == 1);
            free(grown);
            at = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
            CHECK(at && (uintptr_t)at % alignment == 0);
            memset(at, 2, size);
            free(at);
            at = memalign(alignment, size);
            CHECK(at && (uintptr_t)at % alignment == 0);
            free(at);
        }
        void *page = valloc(size), *pages = pvalloc(size);
        CHECK((uintptr_t)page % PAGE == 0 && (uintptr_t)pages % PAGE == 0);
        CHECK(malloc_usable_size(pages) >= (size + PAGE - 1) / PAGE * PAGE);
        memset(pages, 3, (size + PAGE - 1) / PAGE * PAGE);
        free(page);
        free(pages);
        /* The whole usable size may be used. */
        unsigned char *at = malloc(size);
        size_t usable = malloc_usable_size(at);
        fill_bytes(at, usable, i);
        verify_bytes(at, usable, i);
        free(at);
    }
    void *at = NULL;
    CHECK(posix_memalign(&at, 3, 100000) == EINVAL);
    CHECK(posix_memalign(&at, 16, half + 1) == ENOMEM);
    CHECK(malloc_usable_size(NULL) == 0);

    /* calloc clears what was used and freed before. */
    for (int round = 0; round < 3; round++) {
        unsigned char *dirty = malloc(2 * MIB);
        CHECK(dirty);
        memset(dirty, 0x5a, 2 * MIB);
        if (round % 2)
            churn();
        free(dirty);
        unsigned char *clean = calloc(2, MIB);
        CHECK(clean);
        for (size_t i = 0; i < 2 * MIB; i++)
            CHECKF(clean[i] == 0, "calloc: byte %zu is %#x", i, clean[i]);
        free(clean);
    }
    malloc_trim(0);
    struct mallinfo2 info = mallinfo2();
    CHECK(info.arena + info.hblkhd > 0);
    return 0;
}
