/*
 * How fast could a pager in user space be at best?
 *
 * Updates of 8 bytes on 4 GiB, nine in ten of them in a hot set, with 1 GiB
 * resident, by two programs that differ only in who brings pages in:
 *
 *   plain    nobody: to be run in a memory control group, with swap on zram
 *   sigbus   the thread that faults, in a signal handler (UFFD_FEATURE_SIGBUS);
 *            a second thread takes pages out, 64 at a time, by vmsplice and
 *            process_madvise (one flush of the TLBs a batch)
 *
 * The second is what no pager that has to be correct can reach: system calls on absent
 * pages fail; what leaves is chosen by one who knows the hot set, and never
 * touches it; and pages are copied, not compressed.  What it lacks to be a pager
 * can only cost more.
 *
 *   cc -O2 -pthread bound.c -o bound
 *   ./bound sigbus|plain THREADS HOT-MIB CORPUS [WARM-SECONDS [SECONDS]]
 *
 * Prints one line of JSON. Run beside the others by `make bench-bound`.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, BATCH = 64, MAX_THREADS = 8 };
static const uint64_t PAGES = (4ull << 30) / PAGE, BUDGET = (1ull << 30) / PAGE;
static const uint64_t HEADROOM = 2048;

static char *base, *store;
static int uffd = -1, self;
static uint32_t *order;		/* pages in random order; the first are hot */
static uint64_t hot;
static atomic_uchar *cold;	/* by page: may leave */

/* Pages that may leave, in the order in which they came. */
static uint32_t *fifo;
static atomic_ullong in, out, resident, faults;
static atomic_int stop, measuring;
static atomic_ullong updates;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x;
}

static void came(uint32_t page)
{
	atomic_fetch_add(&resident, 1);
	if (!atomic_load_explicit(&cold[page], memory_order_relaxed))
		return;
	uint64_t at = atomic_fetch_add(&in, 1);
	fifo[at % PAGES] = page + 1;
}

static void on_sigbus(int sig, siginfo_t *si, void *context)
{
	(void)sig, (void)context;
	uint32_t page = ((char *)si->si_addr - base) / PAGE;
	/* The budget is kept by who takes pages out. */
	while (atomic_load(&resident) >= BUDGET)
		__builtin_ia32_pause();
	struct uffdio_copy c = { .dst = (uintptr_t)base + (uint64_t)page * PAGE,
				 .src = (uintptr_t)store + (uint64_t)page * PAGE,
				 .len = PAGE, .mode = UFFDIO_COPY_MODE_DONTWAKE };
	if (ioctl(uffd, UFFDIO_COPY, &c)) {
		if (errno != EEXIST)
			_exit(3);
		return;
	}
	came(page);
	if (atomic_load_explicit(&measuring, memory_order_relaxed))
		atomic_fetch_add_explicit(&faults, 1, memory_order_relaxed);
}

/* Takes the oldest pages out, a batch at a time, ahead of need. */
static void *evictor(void *arg)
{
	(void)arg;
	int tube[2];
	if (pipe(tube) || fcntl(tube[1], F_SETPIPE_SZ, 1 << 20) < 0)
		die("pipe");
	while (!atomic_load(&stop)) {
		if (atomic_load(&resident) + HEADROOM < BUDGET) {
			__builtin_ia32_pause();
			continue;
		}
		struct iovec v[BATCH];
		uint32_t pages[BATCH];
		int n = 0;
		while (n < BATCH && atomic_load(&out) < atomic_load(&in)) {
			uint64_t at = atomic_load(&out) % PAGES;
			uint32_t page;
			while (!(page = *(volatile uint32_t *)&fifo[at]))
				;
			fifo[at] = 0;
			atomic_fetch_add(&out, 1);
			pages[n] = page - 1;
			v[n++] = (struct iovec){ base + (uint64_t)(page - 1) * PAGE, PAGE };
		}
		if (!n)
			continue;
		if (vmsplice(tube[1], v, n, 0) != (ssize_t)n * PAGE)
			die("vmsplice");
		/* A thread that faults on one of these from here on waits: its old copy
		 * must not be given to it. (Here it may be: what is measured is time.) */
		if (syscall(SYS_process_madvise, self, v, n, MADV_DONTNEED, 0) < 0)
			die("process_madvise");
		for (int i = 0; i < n; i++)
			if (read(tube[0], store + (uint64_t)pages[i] * PAGE, PAGE) != PAGE)
				die("read");
		atomic_fetch_sub(&resident, n);
	}
	return 0;
}

static void *updater(void *arg)
{
	uint64_t x = 88172645463325252ull + (uintptr_t)arg * 7919, mine = 0;
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		for (int i = 0; i < 64; i++) {
			uint64_t r = next(&x), among = r % 10 ? hot : PAGES;
			uint32_t page = order[next(&x) % among];
			*(volatile uint64_t *)(base + (uint64_t)page * PAGE + (r >> 52 & 511) * 8) += r;
		}
		mine += 64;
		if (atomic_load_explicit(&measuring, memory_order_relaxed)) {
			atomic_fetch_add_explicit(&updates, mine, memory_order_relaxed);
			mine = 0;
		} else {
			mine = 0;
		}
	}
	return 0;
}

static char *memory(uint64_t bytes)
{
	char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		die("mmap");
	madvise(at, bytes, MADV_NOHUGEPAGE);
	return at;
}

int main(int argc, char **argv)
{
	if (argc < 5)
		return fprintf(stderr, "usage: bound sigbus|plain THREADS HOT-MIB CORPUS [WARM-SECONDS [SECONDS]]\n"), 2;
	int pager = !strcmp(argv[1], "sigbus"), threads = atoi(argv[2]);
	hot = strtoull(argv[3], 0, 10) * (1 << 20) / PAGE;
	if (threads < 1 || threads > MAX_THREADS || !hot || (pager && hot + HEADROOM + BATCH > BUDGET))
		return fprintf(stderr, "bound: 1 to 8 threads, and a hot set that fits\n"), 2;
	int warm = argc > 5 ? atoi(argv[5]) : 15;
	double seconds = argc > 6 ? atof(argv[6]) : 4;
	static char corpus[64 << 20];
	int file = open(argv[4], O_RDONLY);
	ssize_t length = file < 0 ? -1 : read(file, corpus, sizeof corpus);
	if (length < PAGE)
		die(argv[4]);
	uint64_t tiles = length / PAGE;
	base = memory(PAGES * PAGE);
	order = (uint32_t *)memory(PAGES * 4);
	cold = (atomic_uchar *)memory(PAGES);
	fifo = (uint32_t *)memory(PAGES * 4);
	uint64_t x = 2463534242;
	for (uint64_t i = 0; i < PAGES; i++)
		order[i] = i;
	for (uint64_t i = PAGES - 1; i; i--) {
		uint64_t j = next(&x) % (i + 1);
		uint32_t t = order[i];
		order[i] = order[j], order[j] = t;
	}
	for (uint64_t i = hot; i < PAGES; i++)
		cold[order[i]] = 1;
	if (pager) {
		store = memory(PAGES * PAGE);
		for (uint64_t i = 0; i < PAGES; i++)
			memcpy(store + i * PAGE, corpus + i % tiles * PAGE, PAGE);
		self = syscall(SYS_pidfd_open, getpid(), 0);
		uffd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
		struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_SIGBUS };
		struct uffdio_register reg = { .range = { (uintptr_t)base, PAGES * PAGE },
					       .mode = UFFDIO_REGISTER_MODE_MISSING };
		if (uffd < 0 || self < 0 || ioctl(uffd, UFFDIO_API, &api) || ioctl(uffd, UFFDIO_REGISTER, &reg))
			die("userfaultfd");
		struct sigaction act = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER };
		sigaction(SIGBUS, &act, 0);
	} else {
		for (uint64_t i = 0; i < PAGES; i++)
			memcpy(base + i * PAGE, corpus + i % tiles * PAGE, PAGE);
	}
	pthread_t t[MAX_THREADS], e;
	if (pager)
		pthread_create(&e, 0, evictor, 0);
	for (intptr_t i = 0; i < threads; i++)
		pthread_create(&t[i], 0, updater, (void *)(i + 1));
	sleep(warm);
	double began = now();
	atomic_store(&measuring, 1);
	usleep(seconds * 1e6);
	uint64_t done = atomic_load(&updates), missed = atomic_load(&faults);
	double took = now() - began;
	printf("{\"system\":\"%s\",\"threads\":%d,\"updates_per_second\":%.0f,\"misses_per_update\":%.5f}\n",
	       argv[1], threads, done / took, (double)missed / done);
	fflush(stdout);
	_exit(0);
}
