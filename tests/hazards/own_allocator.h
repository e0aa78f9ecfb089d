/* An allocator that is linked into the program, as jemalloc is into rustc: it asks the kernel for
 * memory, gives it back and moves it with its lock held, and takes its lock around forks. Whoever
 * calls it from inside such a call, in the same thread, is told at once; in another thread that
 * the first one waits for, the program hangs. */
#ifndef OWN_ALLOCATOR_H
#define OWN_ALLOCATOR_H

#include "hazard.h"
#include <malloc.h>

#define CHUNK (2 * MIB)
#define LARGE (MIB / 2)

struct block {
    size_t size;   /* bytes for the program */
    size_t mapped; /* of a mapping of its own; 0 for a part of a chunk */
};

static pthread_mutex_t allocator_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic pid_t allocator_owner;
static char *chunk, *chunk_end;
static atomic_size_t allocations;

static void allocator_take(void)
{
    pid_t self = (pid_t)syscall(SYS_gettid);
    if (atomic_load(&allocator_owner) == self)
        FAIL("the allocator is called from inside a call of its own");
    pthread_mutex_lock(&allocator_lock);
    atomic_store(&allocator_owner, self);
    atomic_fetch_add(&allocations, 1);
}
static void allocator_leave(void)
{
    atomic_store(&allocator_owner, 0);
    pthread_mutex_unlock(&allocator_lock);
}
/* The lock is the child's. */
static void allocator_leave_in_child(void)
{
    allocator_leave();
}
__attribute__((constructor(101))) static void allocator_begins(void)
{
    pthread_atfork(allocator_take, allocator_leave, allocator_leave_in_child);
}

static struct block *block_of(void *at)
{
    return (struct block *)at - 1;
}

void *malloc(size_t size)
{
    size_t whole = (size + sizeof(struct block) + 15) & ~15ul;
    struct block *block = NULL;
    if (whole < size) {
        errno = ENOMEM;
        return NULL;
    }
    allocator_take();
    if (whole >= LARGE) {
        size_t mapped = (whole + PAGE - 1) & ~(PAGE - 1);
        void *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at != MAP_FAILED) {
            block = at;
            *block = (struct block){ size, mapped };
        }
    } else {
        if (whole > (size_t)(chunk_end - chunk)) {
            char *at = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (at != MAP_FAILED) {
                chunk = at;
                chunk_end = at + CHUNK;
            }
        }
        if (whole <= (size_t)(chunk_end - chunk)) {
            block = (struct block *)chunk;
            *block = (struct block){ size, 0 };
            chunk += whole;
        }
    }
    allocator_leave();
    if (!block)
        errno = ENOMEM;
    return block ? block + 1 : NULL;
}

void free(void *at)
{
    int error = errno;
    if (!at)
        return;
    allocator_take();
    struct block *block = block_of(at);
    if (block->mapped)
        munmap(block, block->mapped);
    else
        /* Small blocks are not reused; their pages are given back. */
        madvise((void *)(((uintptr_t)at + PAGE - 1) & ~(PAGE - 1)),
                block->size > 2 * PAGE ? (block->size - PAGE) & ~(PAGE - 1) : 0, MADV_DONTNEED);
    allocator_leave();
    errno = error;
}

void *calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    /* What is new is zero. */
    return malloc(bytes);
}

void *realloc(void *at, size_t size)
{
    if (!at)
        return malloc(size);
    struct block *block = block_of(at);
    size_t old = block->size;
    if (block->mapped && size >= LARGE) {
        size_t mapped = (size + sizeof *block + PAGE - 1) & ~(PAGE - 1);
        allocator_take();
        void *moved = mremap(block, block->mapped, mapped, MREMAP_MAYMOVE);
        allocator_leave();
        if (moved == MAP_FAILED)
            return NULL;
        block = moved;
        *block = (struct block){ size, mapped };
        return block + 1;
    }
    void *to = malloc(size);
    if (to) {
        memcpy(to, at, old < size ? old : size);
        free(at);
    }
    return to;
}

void *memalign(size_t align, size_t size)
{
    if (align <= 16)
        return malloc(size);
    char *at = malloc(size + align + sizeof(struct block));
    if (!at)
        return NULL;
    uintptr_t to = ((uintptr_t)at + sizeof(struct block) + align - 1) & -align;
    /* It is never given back by itself. */
    *block_of((void *)to) = (struct block){ size, 0 };
    return (void *)to;
}
void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
int posix_memalign(void **to, size_t align, size_t size)
{
    *to = memalign(align, size);
    return *to ? 0 : ENOMEM;
}
size_t malloc_usable_size(void *at) { return at ? block_of(at)->size : 0; }

#endif
