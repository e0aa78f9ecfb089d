/* io_uring by bare system calls: reads and writes, plain, vectored and with
 * registered buffers, from and to memory that is absent, untouched, or evicted
 * while the kernel works on it. */
#include "hazard.h"
#include <linux/io_uring.h>

enum { ENTRIES = 32 };
static int ring;
static unsigned *sq_head, *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
static struct io_uring_sqe *sqes;
static struct io_uring_cqe *cqes;
static size_t block = 16 * KIB;

static void setup(void)
{
    struct io_uring_params params = {0};
    ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &params);
    if (ring == -1 && (errno == ENOSYS || errno == EPERM))
        skip("io_uring is not allowed here");
    CHECKF(ring != -1, "io_uring_setup: %s", strerror(errno));
    size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof *cqes;
    char *sq = mmap(NULL, sq_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
                    IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, cq_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
                    IORING_OFF_CQ_RING);
    sqes = mmap(NULL, params.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    CHECK(sq != MAP_FAILED && cq != MAP_FAILED && sqes != MAP_FAILED);
    sq_head = (void *)(sq + params.sq_off.head);
    sq_tail = (void *)(sq + params.sq_off.tail);
    sq_mask = (void *)(sq + params.sq_off.ring_mask);
    sq_array = (void *)(sq + params.sq_off.array);
    cq_head = (void *)(cq + params.cq_off.head);
    cq_tail = (void *)(cq + params.cq_off.tail);
    cq_mask = (void *)(cq + params.cq_off.ring_mask);
    cqes = (void *)(cq + params.cq_off.cqes);
}

static void queue(unsigned char opcode, int fd, void *at, unsigned length, size_t offset, unsigned buffer)
{
    unsigned tail = *sq_tail, slot = tail & *sq_mask;
    sqes[slot] = (struct io_uring_sqe){.opcode = opcode, .fd = fd, .addr = (uintptr_t)at,
                                       .len = length, .off = offset, .user_data = length,
                                       .buf_index = (unsigned short)buffer};
    if (tail % 4 == 3)
        sqes[slot].flags = IOSQE_ASYNC; /* by a kernel thread, later */
    sq_array[slot] = slot;
    __atomic_store_n(sq_tail, tail + 1, __ATOMIC_RELEASE);
}

static void finish(unsigned count, size_t expected)
{
    for (unsigned submitted = 0; submitted < count;)
        submitted += (unsigned)SYS(syscall(SYS_io_uring_enter, ring, count - submitted, 0, 0, NULL, 0));
    for (unsigned done = 0; done < count;) {
        unsigned head = *cq_head;
        if (head == __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE)) {
            SYS(syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0));
            continue;
        }
        int result = cqes[head & *cq_mask].res;
        CHECKF(result == (int)expected, "a request gives %d (%s) instead of %zu", result,
               result < 0 ? strerror(-result) : "short", expected);
        __atomic_store_n(cq_head, head + 1, __ATOMIC_RELEASE);
        done++;
    }
}

int main(void)
{
    setup();
    int fd = temp_file();
    size_t bytes = ENTRIES * block;
    unsigned char *out = map(bytes), *in = map(bytes);
    fill(out, bytes, 1);
    churn();
    for (unsigned i = 0; i < ENTRIES; i++)
        queue(IORING_OP_WRITE, fd, out + i * block, (unsigned)block, i * block, 0);
    finish(ENTRIES, block);
    for (unsigned i = 0; i < ENTRIES; i++) /* into memory that was never touched */
        queue(IORING_OP_READ, fd, in + i * block, (unsigned)block, i * block, 0);
    finish(ENTRIES, block);
    churn();
    verify(in, bytes, 1);
    memset(in, 0, bytes);
    struct iovec *vectors = map(64 * KIB);
    for (unsigned i = 0; i < ENTRIES; i++)
        vectors[i] = (struct iovec){in + i * block, block};
    churn(); /* vectors and buffers are absent */
    for (unsigned i = 0; i < ENTRIES; i++)
        queue(IORING_OP_READV, fd, vectors + i, 1, i * block, 0);
    finish(ENTRIES, block);
    churn();
    verify(in, bytes, 1);

    /* A read that waits in the kernel while its buffer is evicted. */
    int ends[2];
    SYS(pipe(ends));
    for (int round = 0; round < 3; round++) {
        memset(in, 0xcc, 4 * block);
        queue(IORING_OP_READ, ends[0], in + 100, 60000, 0, 0);
        CHECK(SYS(syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0)) == 1);
        churn();
        churn();
        write_all(ends[1], out, 60000);
        finish(0, 0);
        unsigned head = *cq_head;
        while (head == __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE))
            SYS(syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0));
        CHECKF(cqes[head & *cq_mask].res == 60000, "the waiting read gives %d", cqes[head & *cq_mask].res);
        __atomic_store_n(cq_head, head + 1, __ATOMIC_RELEASE);
        for (size_t i = 0; i < 60000; i++)
            CHECKF(in[100 + i] == pattern_byte(1, i), "byte %zu of the waiting read", i);
        CHECK(in[99] == 0xcc && in[60100] == 0xcc);
    }

    /* Registered buffers are pinned: the kernel writes to their frames for as
     * long as they are registered, whatever happens to the page tables. */
    size_t fixed_block = 16 * KIB, fixed_bytes = 8 * fixed_block;
    unsigned char *fixed = map(fixed_bytes);
    fill(fixed, fixed_bytes, 2);
    churn();
    struct iovec registered[8];
    for (int i = 0; i < 8; i++)
        registered[i] = (struct iovec){fixed + (size_t)i * fixed_block, fixed_block};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, registered, 8) == -1) {
        CHECKF(errno == ENOMEM, "IORING_REGISTER_BUFFERS: %s", strerror(errno));
        return 0; /* beyond this machine's limit of locked memory */
    }
    for (int round = 0; round < 3; round++) {
        verify(fixed, fixed_bytes, 2 + (uint64_t)round);
        churn();
        for (unsigned i = 0; i < 8; i++)
            queue(IORING_OP_WRITE_FIXED, fd, fixed + i * fixed_block, (unsigned)fixed_block,
                  i * fixed_block, i);
        finish(8, fixed_block);
        CHECK(SYS(pread(fd, in, fixed_bytes, 0)) == (long)fixed_bytes);
        verify(in, fixed_bytes, 2 + (uint64_t)round);
        fill(in, fixed_bytes, 3 + (uint64_t)round);
        CHECK(SYS(pwrite(fd, in, fixed_bytes, 0)) == (long)fixed_bytes);
        churn();
        for (unsigned i = 0; i < 8; i++)
            queue(IORING_OP_READ_FIXED, fd, fixed + i * fixed_block, (unsigned)fixed_block,
                  i * fixed_block, i);
        finish(8, fixed_block);
        verify(fixed, fixed_bytes, 3 + (uint64_t)round); /* what the kernel wrote is what we see */
    }
    churn();
    verify(fixed, fixed_bytes, 5);
    return 0;
}
