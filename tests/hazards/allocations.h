/* What a program asks of its allocator, whichever that is: much more than fits, in all sizes, by
 * several threads, in children and their children, with content that must stay. */
#ifndef ALLOCATIONS_H
#define ALLOCATIONS_H

#include "hazard.h"

enum { BLOCKS = 64, THREADS = 3 };

struct held {
    unsigned char *at[BLOCKS];
    size_t bytes[BLOCKS];
};

/* A few words of each page: what is lost, is lost by pages. */
static void allocation_fill(unsigned char *at, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i + 8 <= bytes; i += 1024)
        memcpy(at + i, (uint64_t[]){ mix(seed + i) }, 8);
}
static void allocation_verify(const unsigned char *at, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i + 8 <= bytes; i += 1024) {
        uint64_t got;
        memcpy(&got, at + i, 8);
        CHECKF(got == mix(seed + i), "byte %zu of %zu at %p: %#llx, expected %#llx", i, bytes,
               (const void *)at, (unsigned long long)got, (unsigned long long)mix(seed + i));
    }
}

static size_t allocation_size(uint64_t seed, int i)
{
    uint64_t random = mix(seed * 1000 + (uint64_t)i);
    return i % 8 == 0 ? MIB / 2 + random % (MIB / 2) : 1 + random % (48 * KIB);
}

static void allocations_make(struct held *held, uint64_t seed)
{
    for (int i = 0; i < BLOCKS; i++) {
        held->bytes[i] = allocation_size(seed, i);
        held->at[i] = i % 3 ? malloc(held->bytes[i]) : calloc(held->bytes[i], 1);
        CHECK(held->at[i]);
        allocation_fill(held->at[i], held->bytes[i], seed + (uint64_t)i);
    }
}

static void allocations_verify(const struct held *held, uint64_t seed)
{
    for (int i = 0; i < BLOCKS; i++)
        allocation_verify(held->at[i], held->bytes[i], seed + (uint64_t)i);
}

static void allocations_change(struct held *held, uint64_t seed)
{
    for (int i = 0; i < BLOCKS; i += 4) {
        size_t bytes = held->bytes[i] * 2;
        held->at[i] = realloc(held->at[i], bytes);
        CHECK(held->at[i]);
        allocation_verify(held->at[i], held->bytes[i], seed + (uint64_t)i);
        held->bytes[i] = bytes;
        allocation_fill(held->at[i], bytes, seed + (uint64_t)i);
    }
}

static void allocations_free(struct held *held)
{
    for (int i = 0; i < BLOCKS; i++)
        free(held->at[i]);
}

static void *allocations_in_thread(void *seed)
{
    struct held held;
    allocations_make(&held, (uintptr_t)seed);
    allocations_change(&held, (uintptr_t)seed);
    allocations_verify(&held, (uintptr_t)seed);
    allocations_free(&held);
    return NULL;
}

static void allocations_by_threads(uint64_t seed)
{
    pthread_t threads[THREADS];
    for (uint64_t i = 0; i < THREADS; i++)
        PTHREAD(pthread_create(&threads[i], NULL, allocations_in_thread,
                               (void *)(uintptr_t)(seed + i * 100)));
    for (int i = 0; i < THREADS; i++)
        PTHREAD(pthread_join(threads[i], NULL));
}

/* `generations` deep. */
static void allocations_in_child(const struct held *held, uint64_t seed, int generations)
{
    pid_t child = (pid_t)SYS(fork());
    if (child == 0) {
        struct held own;
        allocations_verify(held, seed);
        allocations_make(&own, seed + 1000);
        allocations_by_threads(seed + 2000);
        if (generations > 1)
            allocations_in_child(&own, seed + 1000, generations - 1);
        allocations_verify(&own, seed + 1000);
        allocations_verify(held, seed);
        _exit(0);
    }
    wait_ok(child);
}

static void allocations_all(void)
{
    struct held held;
    allocations_make(&held, 1);
    allocations_by_threads(2);
    allocations_verify(&held, 1);
    allocations_in_child(&held, 1, 2);
    allocations_change(&held, 1);
    churn();
    allocations_verify(&held, 1);
    allocations_free(&held);
}

#endif
