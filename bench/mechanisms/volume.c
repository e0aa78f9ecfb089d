/*
 * What does memory alone allow a volume?
 *
 * Loops that do what a volume cannot do without, and nothing else: no errors and no
 * other threads. They run on a file that is mapped as a volume's image is, laid out
 * like one: a map of 8 bytes for each sector, then blocks. What they copy, exchange
 * and write back they do by the instructions of `terrace-volume`
 * (crates/volume/src/pm/stores.rs).
 *
 *   written
 *     copy              past the caches to any block, and a fence
 *     entry             past the caches to a free block, a fence; then any entry of the
 *                       map is exchanged for one with that block, and written back. The
 *                       block that it had is free after the next fence.
 *     entry, fetched    the same; the entry is fetched before the copy
 *     entry, page       the same; a line of the next block is, for its page's translation
 *   exchanged, for each entry
 *     8 entries, each   eight entries of a line are exchanged, each then written back,
 *                       and a fence
 *     8 entries, once   the same, the line written back once
 *   read
 *     copy              of any block
 *     entry             of the block that any entry names
 *     entry, twice      the same, and the entry is looked at again
 *   read in a row, for each sector
 *     8 sectors         the same for eight sectors in a row
 *     8, fetched        the first bytes of the next are fetched meanwhile
 *   mounted, for each entry
 *     scan, any order   a bit is set for each entry's block; blocks in any order
 *     scan, in order    the same with blocks in the order of the sectors
 *     write-back        of each line of the map, and a fence
 *     page faults       of a map that has to be mapped anew, by one touch of a page
 *
 * Each has its turn, round after round. Printed are nanoseconds of the processor's
 * time, the median of the rounds with the least and the largest, and how the first of
 * the group compares.
 *
 *   cc -O2 volume.c -o volume && ./volume [DIRECTORY [MIB [ROUNDS [MILLISECONDS]]]]
 *
 * Run by `make bench-volume-bound`. For x86_64.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))

enum { PAGE = 4096, LINE = 64, SPARE = 2, MOST_ROUNDS = 99 };
static const uint64_t USED = 1ull << 63, STEP = 1ull << 40, SEQUENCE = ((1ull << 21) - 1) << 40,
		      BLOCK = (1ull << 40) - 1;

/* A medium that is laid out as a volume, and what one thread of it knows. */
struct volume {
	char *data;
	uint64_t *map, *in_order;	/* entries; the second map has blocks in order */
	uint64_t sectors, blocks;
	uint64_t spare, replaced;	/* the free block, and that of the last exchange */
	uint64_t *bits;			/* a bit for each block */
	uint64_t random;
};

static char buffer[PAGE] __attribute__((aligned(4096)));
static enum { CLWB, CLFLUSHOPT, CLFLUSH } how;
static const char *const names[] = { "clwb", "clflushopt", "clflush" };
static int avx;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double seconds(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

INLINE uint64_t below(struct volume *v, uint64_t n)
{
	v->random ^= v->random >> 12, v->random ^= v->random << 25, v->random ^= v->random >> 27;
	return (unsigned __int128)(v->random * 0x2545f4914f6cdd1dull) * n >> 64;
}

INLINE void fence(void)
{
	__asm__ volatile("sfence" ::: "memory");
}

INLINE void write_back(void *line)
{
	switch (how) {
	case CLWB:
		__asm__ volatile("clwb (%0)" : : "r"(line) : "memory");
		break;
	case CLFLUSHOPT:
		__asm__ volatile("clflushopt (%0)" : : "r"(line) : "memory");
		break;
	case CLFLUSH:
		__asm__ volatile("clflush (%0)" : : "r"(line) : "memory");
		break;
	}
}

/* Past the caches. */
INLINE void copy_in(char *to, const char *from, uint64_t size)
{
	const char *end = from + size;
	__asm__ volatile("1:\n\t"
			 "movups (%0), %%xmm0\n\t"
			 "movups 16(%0), %%xmm1\n\t"
			 "movups 32(%0), %%xmm2\n\t"
			 "movups 48(%0), %%xmm3\n\t"
			 "movntps %%xmm0, (%1)\n\t"
			 "movntps %%xmm1, 16(%1)\n\t"
			 "movntps %%xmm2, 32(%1)\n\t"
			 "movntps %%xmm3, 48(%1)\n\t"
			 "add $64, %0\n\t"
			 "add $64, %1\n\t"
			 "cmp %2, %0\n\t"
			 "jne 1b"
			 : "+r"(from), "+r"(to)
			 : "r"(end)
			 : "xmm0", "xmm1", "xmm2", "xmm3", "memory", "cc");
}

INLINE void copy_out(char *to, const char *from, uint64_t size)
{
	char *end = to + size;
	if (avx)
		__asm__ volatile("1:\n\t"
				 "vmovups (%0), %%ymm0\n\t"
				 "vmovups 32(%0), %%ymm1\n\t"
				 "vmovups 64(%0), %%ymm2\n\t"
				 "vmovups 96(%0), %%ymm3\n\t"
				 "vmovups 128(%0), %%ymm4\n\t"
				 "vmovups 160(%0), %%ymm5\n\t"
				 "vmovups 192(%0), %%ymm6\n\t"
				 "vmovups 224(%0), %%ymm7\n\t"
				 "vmovups %%ymm0, (%1)\n\t"
				 "vmovups %%ymm1, 32(%1)\n\t"
				 "vmovups %%ymm2, 64(%1)\n\t"
				 "vmovups %%ymm3, 96(%1)\n\t"
				 "vmovups %%ymm4, 128(%1)\n\t"
				 "vmovups %%ymm5, 160(%1)\n\t"
				 "vmovups %%ymm6, 192(%1)\n\t"
				 "vmovups %%ymm7, 224(%1)\n\t"
				 "add $256, %0\n\t"
				 "add $256, %1\n\t"
				 "cmp %2, %1\n\t"
				 "jne 1b\n\t"
				 "vzeroupper"
				 : "+r"(from), "+r"(to)
				 : "r"(end)
				 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
				   "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
				   "xmm15", "memory", "cc");
	else
		__asm__ volatile("1:\n\t"
				 "movups (%0), %%xmm0\n\t"
				 "movups 16(%0), %%xmm1\n\t"
				 "movups 32(%0), %%xmm2\n\t"
				 "movups 48(%0), %%xmm3\n\t"
				 "movups %%xmm0, (%1)\n\t"
				 "movups %%xmm1, 16(%1)\n\t"
				 "movups %%xmm2, 32(%1)\n\t"
				 "movups %%xmm3, 48(%1)\n\t"
				 "add $64, %0\n\t"
				 "add $64, %1\n\t"
				 "cmp %2, %1\n\t"
				 "jne 1b"
				 : "+r"(from), "+r"(to)
				 : "r"(end)
				 : "xmm0", "xmm1", "xmm2", "xmm3", "memory", "cc");
}

/* The entry has this block from now on; the block that it had. */
INLINE uint64_t exchange(uint64_t *entry, uint64_t block)
{
	uint64_t old = __atomic_load_n(entry, __ATOMIC_ACQUIRE), new;
	do
		new = USED | ((old + STEP) & SEQUENCE) | block;
	while (!__atomic_compare_exchange_n(entry, &old, new, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE));
	return old & BLOCK;
}

INLINE void write_copy(struct volume *v, uint64_t n, uint64_t size)
{
	while (n--) {
		copy_in(v->data + below(v, v->blocks) * size, buffer, size);
		fence();
	}
}

/* What is fetched before it is needed. */
enum { ENTRY = 1, PAGE_OF_NEXT = 2 };

INLINE void write_entry(struct volume *v, uint64_t n, uint64_t size, int fetched)
{
	while (n--) {
		uint64_t *entry = v->map + below(v, v->sectors), block = v->spare;
		if (fetched & ENTRY)
			__asm__ volatile("prefetchw (%0)" : : "r"(entry));
		/* The last line: it leaves the caches for the store, which comes last. */
		if (fetched & PAGE_OF_NEXT)
			__builtin_prefetch(v->data + (v->replaced + 1) * size - LINE);
		copy_in(v->data + block * size, buffer, size);
		fence();
		v->spare = v->replaced;
		v->replaced = exchange(entry, block);
		write_back(entry);
	}
}

/* Blocks go from entry to entry within a line, so that each is named once. */
INLINE void write_line(struct volume *v, uint64_t n, int once)
{
	for (; n; n -= 8) {
		uint64_t *line = v->map + below(v, v->sectors / 8) * 8;
		uint64_t block = v->spare;
		for (int i = 0; i < 8; i++) {
			block = exchange(line + i, block);
			if (!once)
				write_back(line);
		}
		if (once)
			write_back(line);
		v->spare = v->replaced;
		v->replaced = block;
		fence();
	}
}

INLINE void read_copy(struct volume *v, uint64_t n, uint64_t size)
{
	while (n--)
		copy_out(buffer, v->data + below(v, v->blocks) * size, size);
}

INLINE void read_sector(struct volume *v, uint64_t lba, uint64_t size, int twice)
{
	uint64_t entry, now = __atomic_load_n(v->map + lba, __ATOMIC_ACQUIRE);
	do {
		entry = now;
		copy_out(buffer, v->data + (entry & BLOCK) * size, size);
		if (twice)
			now = __atomic_load_n(v->map + lba, __ATOMIC_ACQUIRE);
	} while (now != entry);
}

INLINE void read_entry(struct volume *v, uint64_t n, uint64_t size, int twice)
{
	while (n--)
		read_sector(v, below(v, v->sectors), size, twice);
}

INLINE void fetch(struct volume *v, uint64_t lba, uint64_t size)
{
	const char *block = v->data + (__atomic_load_n(v->map + lba, __ATOMIC_ACQUIRE) & BLOCK) * size;
	for (int at = 0; at < 512; at += LINE)
		__builtin_prefetch(block + at);
}

/* So many sectors ahead. */
INLINE void read_row(struct volume *v, uint64_t n, uint64_t size, uint64_t ahead)
{
	for (; n; n -= 8) {
		uint64_t lba = below(v, v->sectors / 8) * 8;
		for (uint64_t i = 1; i < ahead; i++)
			fetch(v, lba + i, size);
		for (uint64_t i = 0; i < 8; i++) {
			if (ahead && i + ahead < 8)
				fetch(v, lba + i + ahead, size);
			read_sector(v, lba + i, size, 1);
		}
	}
}

/* Every entry is in use, and no block is named twice: else the map was destroyed. */
INLINE void scan(struct volume *v, const uint64_t *map)
{
	/* Copies, which no store to the bits can change. */
	uint64_t *bits = v->bits, sectors = v->sectors, blocks = v->blocks, wrong = 0;
	memset(bits, 0, (blocks / 64 + 1) * 8);
	for (uint64_t i = 0; i < sectors; i++) {
		uint64_t entry = map[i], block = entry & BLOCK, bit = 1ull << (block & 63);
		if (entry >> 61 != 4 || block >= blocks || bits[block >> 6] & bit) {
			wrong++;
			continue;
		}
		bits[block >> 6] |= bit;
	}
	if (wrong) {
		fprintf(stderr, "volume: %llu entries are wrong\n", (unsigned long long)wrong);
		exit(1);
	}
}

#define LOOP(name, call) static void name(struct volume *v, uint64_t n) { (void)n; call; }
LOOP(write_copy_4096, write_copy(v, n, 4096))
LOOP(write_copy_512, write_copy(v, n, 512))
LOOP(write_entry_4096, write_entry(v, n, 4096, 0))
LOOP(write_entry_512, write_entry(v, n, 512, 0))
LOOP(write_fetched_4096, write_entry(v, n, 4096, ENTRY))
LOOP(write_fetched_512, write_entry(v, n, 512, ENTRY))
LOOP(write_page_4096, write_entry(v, n, 4096, PAGE_OF_NEXT))
LOOP(write_page_512, write_entry(v, n, 512, PAGE_OF_NEXT))
LOOP(write_each, write_line(v, n, 0))
LOOP(write_once, write_line(v, n, 1))
LOOP(read_copy_4096, read_copy(v, n, 4096))
LOOP(read_copy_512, read_copy(v, n, 512))
LOOP(read_entry_4096, read_entry(v, n, 4096, 0))
LOOP(read_entry_512, read_entry(v, n, 512, 0))
LOOP(read_twice_4096, read_entry(v, n, 4096, 1))
LOOP(read_twice_512, read_entry(v, n, 512, 1))
LOOP(read_row_4096, read_row(v, n, 4096, 0))
LOOP(read_row_512, read_row(v, n, 512, 0))
LOOP(read_ahead_4096, read_row(v, n, 4096, 1))
LOOP(read_ahead_512, read_row(v, n, 512, 2))
LOOP(scan_any, scan(v, v->map))
LOOP(scan_in_order, scan(v, v->in_order))

static void write_back_map(struct volume *v, uint64_t n)
{
	(void)n;
	for (uint64_t i = 0; i < v->sectors; i += LINE / 8)
		write_back(v->map + i);
	fence();
}

static void unmap(struct volume *v)
{
	if (madvise(v->map, v->sectors * 8, MADV_DONTNEED))
		die("madvise");
}

static void touch(struct volume *v, uint64_t n)
{
	(void)n;
	for (uint64_t i = 0; i < v->sectors; i += PAGE / 8)
		(void)*(volatile uint64_t *)(v->map + i);
}

struct test {
	const char *group, *name;
	void (*run)(struct volume *, uint64_t);
	void (*before)(struct volume *);	/* not timed */
	int whole;				/* once for all entries, instead of n operations */
	double ns[MOST_ROUNDS];
};

/* One turn: nanoseconds of an operation, or of an entry. */
static double turn(struct volume *v, struct test *t, double length)
{
	enum { BETWEEN_LOOKS = 64 };
	uint64_t count = 0;
	if (t->before)
		t->before(v);
	double begun = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
	if (t->whole) {
		t->run(v, 0);
		count = v->sectors;
	} else {
		do {
			t->run(v, BETWEEN_LOOKS);
			count += BETWEEN_LOOKS;
		} while (seconds(CLOCK_MONOTONIC) - begun < length);
	}
	return (seconds(CLOCK_THREAD_CPUTIME_ID) - cpu) * 1e9 / count;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Lays a volume out in mapped memory, with blocks in any order. */
static void lay_out(struct volume *v, char *base, uint64_t bytes, uint64_t size)
{
	/* Two maps and the blocks, each from the beginning of a page. */
	v->sectors = (bytes - 3 * PAGE) / (size + 16) / 8 * 8 - SPARE * 8;
	v->blocks = v->sectors + SPARE;
	uint64_t map_bytes = (v->sectors * 8 + PAGE - 1) / PAGE * PAGE;
	v->map = (uint64_t *)base;
	v->in_order = (uint64_t *)(base + map_bytes);
	v->data = base + 2 * map_bytes;
	v->random = 88172645463325252ull;
	memset(v->data, 0x5a, v->blocks * size);
	for (uint64_t i = 0; i < v->sectors; i++)
		v->map[i] = v->in_order[i] = USED | i;
	for (uint64_t i = v->sectors - 1; i; i--) {
		uint64_t j = below(v, i + 1), e = v->map[i];
		v->map[i] = v->map[j], v->map[j] = e;
	}
	v->spare = v->sectors, v->replaced = v->sectors + 1;
	v->bits = calloc(v->blocks / 64 + 1, 8);
	if (!v->bits)
		die("calloc");
}

static void measure(char *base, uint64_t bytes, int large, int rounds, double length)
{
	struct test tests[] = {
		{ "written", "copy", large ? write_copy_4096 : write_copy_512, 0, 0, { 0 } },
		{ "written", "entry", large ? write_entry_4096 : write_entry_512, 0, 0, { 0 } },
		{ "written", "entry, fetched", large ? write_fetched_4096 : write_fetched_512, 0, 0, { 0 } },
		{ "written", "entry, page", large ? write_page_4096 : write_page_512, 0, 0, { 0 } },
		{ "exchanged", "8 entries, each", write_each, 0, 0, { 0 } },
		{ "exchanged", "8 entries, once", write_once, 0, 0, { 0 } },
		{ "read", "copy", large ? read_copy_4096 : read_copy_512, 0, 0, { 0 } },
		{ "read", "entry", large ? read_entry_4096 : read_entry_512, 0, 0, { 0 } },
		{ "read", "entry, twice", large ? read_twice_4096 : read_twice_512, 0, 0, { 0 } },
		{ "in a row", "8 sectors", large ? read_row_4096 : read_row_512, 0, 0, { 0 } },
		{ "in a row", "8, fetched", large ? read_ahead_4096 : read_ahead_512, 0, 0, { 0 } },
		{ "mounted", "scan, any order", scan_any, 0, 1, { 0 } },
		{ "mounted", "scan, in order", scan_in_order, 0, 1, { 0 } },
		{ "mounted", "write-back", write_back_map, 0, 1, { 0 } },
		{ "mounted", "page faults", touch, unmap, 1, { 0 } },
	};
	int count = sizeof tests / sizeof *tests;
	struct volume v;
	lay_out(&v, base, bytes, large ? 4096 : 512);
	for (int round = 0; round < rounds; round++)
		for (int i = 0; i < count; i++)
			tests[i].ns[round] = turn(&v, &tests[i], length);
	printf("\nsectors of %d B, %llu of them: ns, and the first of the group over it\n", large ? 4096 : 512,
	       (unsigned long long)v.sectors);
	double first = 0;
	for (int i = 0; i < count; i++) {
		struct test *t = &tests[i];
		qsort(t->ns, rounds, sizeof *t->ns, by_size);
		double median = t->ns[rounds / 2];
		if (!i || strcmp(t->group, tests[i - 1].group))
			first = median;
		printf("%-10s %-18s %7.1f (%.1f to %.1f)  %.2f\n", t->group, t->name, median, t->ns[0],
		       t->ns[rounds - 1], first / median);
	}
	free(v.bits);
}

static void detect(void)
{
	unsigned a, b, c, d;
	/* Intel SDM, CPUID leaf 7: bit 24 of EBX is CLWB, bit 23 CLFLUSHOPT. */
	how = CLFLUSH;
	if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
		how = b >> 24 & 1 ? CLWB : b >> 23 & 1 ? CLFLUSHOPT : CLFLUSH;
	avx = __builtin_cpu_supports("avx");
}

static void machine(void)
{
	struct utsname system;
	char line[256], model[256] = "unknown processor", day[16];
	double load = 0;
	time_t now = time(0);
	FILE *file = fopen("/proc/cpuinfo", "r");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "model name : %255[^\n]", model) == 1)
			break;
	if (file)
		fclose(file);
	uname(&system);
	getloadavg(&load, 1);
	strftime(day, sizeof day, "%F", gmtime(&now));
	printf("%s, Linux %s, %ld processors, %s, load %.1f, %s, %s\n", day, system.release,
	       sysconf(_SC_NPROCESSORS_ONLN), model, load, names[how], avx ? "AVX" : "SSE");
}

int main(int argc, char **argv)
{
	const char *directory = argc > 1 ? argv[1] : "/dev/shm";
	uint64_t bytes = (argc > 2 ? strtoull(argv[2], 0, 10) : 512) << 20;
	int rounds = argc > 3 ? atoi(argv[3]) : 7;
	double length = (argc > 4 ? atof(argv[4]) : 100) / 1000;
	if (!bytes || rounds < 1 || rounds > MOST_ROUNDS || length <= 0)
		return fprintf(stderr, "usage: volume [DIRECTORY [MIB [ROUNDS [MILLISECONDS]]]]\n"), 2;
	char path[4096];
	snprintf(path, sizeof path, "%s/volume-bound-XXXXXX", directory);
	int file = mkstemp(path);
	if (file < 0)
		die(directory);
	/* It lasts as long as this process. */
	unlink(path);
	errno = posix_fallocate(file, 0, bytes);
	if (errno)
		die(directory);
	char *base = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (base == MAP_FAILED)
		die("mmap");
	detect();
	memset(buffer, 7, sizeof buffer);
	machine();
	measure(base, bytes, 1, rounds, length);
	measure(base, bytes, 0, rounds, length);
	return 0;
}
