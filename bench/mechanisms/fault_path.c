/*
 * What does it cost to resolve a page fault in user space, by who resolves it?
 *
 * Every variant serves the same faults: T threads touch absent 4 KiB pages of
 * one userfaultfd range in random order, and each page is filled by
 * UFFDIO_COPY.  Between two faults a thread computes for a while, as a program
 * would.  Only the place where the fault is handled differs:
 *
 *   kernel     no userfaultfd: the kernel's own zero-fill fault, the floor
 *   sigbus     UFFD_FEATURE_SIGBUS: in the faulting thread (system calls on
 *              absent pages fail with EFAULT, so this alone is not usable)
 *   one        one handler thread, wherever the scheduler puts it
 *   pinned     one handler thread on CPU 0, as is the (single) faulting thread
 *   follow     one handler thread that moves to the CPU of the last faulter
 *   percpu     one handler thread a CPU, all blocked in read()
 *   poller     one SCHED_IDLE handler thread a CPU that polls instead of
 *              blocking: it runs exactly when the faulting thread has slept
 *   gap        the same, but a handler reads only after somebody else has run
 *              on its CPU (its clock has jumped), or every 60,000 cycles: what
 *              crates/live/src/fault/wait.rs does
 *
 *   cc -O2 -pthread fault_path.c -o fault_path && ./fault_path
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
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
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

enum { PAGE = 4096, PAGES_PER_THREAD = 16384, MAX_THREADS = 8 };

static int uffd = -1, ncpu, threads;
static char *base, source[PAGE] __attribute__((aligned(4096)));
static atomic_int stop;
static uint32_t lat[MAX_THREADS][PAGES_PER_THREAD];
static double gap_ns;
static int pin_app;

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void pin(int cpu)
{
	cpu_set_t s;
	CPU_ZERO(&s);
	CPU_SET(cpu, &s);
	if (sched_setaffinity(0, sizeof s, &s))
		die("sched_setaffinity");
}

static void fill(uint64_t addr)
{
	struct uffdio_copy c = { .dst = addr & ~(uint64_t)(PAGE - 1),
				 .src = (uintptr_t)source, .len = PAGE };
	if (ioctl(uffd, UFFDIO_COPY, &c) && errno != EEXIST)
		die("UFFDIO_COPY");
}

static void on_sigbus(int sig, siginfo_t *si, void *ctx)
{
	(void)sig, (void)ctx;
	fill((uintptr_t)si->si_addr);
}

enum kind { KERNEL, SIGBUS_, ONE, PINNED, FOLLOW, PERCPU, POLLER, GAP, KINDS };
static const char *names[] = { "kernel", "sigbus", "one", "pinned", "follow", "percpu", "poller", "gap" };
static enum kind kind;
static atomic_int app_cpu;

static void *handler(void *arg)
{
	int cpu = (intptr_t)arg, at = -1;
	if (kind == PINNED)
		pin(0);
	if (kind == PERCPU || kind == POLLER || kind == GAP)
		pin(cpu);
	if (kind == POLLER || kind == GAP) {
		struct sched_param p = { 0 };
		if (sched_setscheduler(0, SCHED_IDLE, &p))
			die("SCHED_IDLE");
	}
	uint64_t last = __rdtsc(), tried = last;
	while (!atomic_load(&stop)) {
		struct uffd_msg m;
		if (kind == GAP) {
			uint64_t t = __rdtsc();
			int jumped = t - last > 2000;
			last = t;
			if (!jumped && t - tried < 60000) {
				_mm_pause();
				continue;
			}
			tried = t;
		} else if (kind != POLLER) {
			struct pollfd p = { uffd, POLLIN, 0 };
			if (poll(&p, 1, 50) <= 0)
				continue;
		}
		if (read(uffd, &m, sizeof m) != sizeof m)
			continue;
		fill(m.arg.pagefault.address);
		if (kind == FOLLOW && atomic_load(&app_cpu) != at)
			pin(at = atomic_load(&app_cpu));
	}
	return 0;
}

static void *app(void *arg)
{
	int me = (intptr_t)arg;
	if (pin_app)
		pin(me % ncpu);
	char *mine = base + (size_t)me * PAGES_PER_THREAD * PAGE;
	uint32_t x = 12345 + me;
	for (int i = 0; i < PAGES_PER_THREAD; i++) {
		/* an odd multiplier modulo a power of two visits every page once */
		size_t page = ((size_t)i * 7919 + 1) % PAGES_PER_THREAD;
		uint64_t t0 = now();
		((volatile char *)mine)[page * PAGE + 64] = 1;
		uint64_t t1 = now();
		lat[me][i] = t1 - t0;
		if (!(i & 255))
			atomic_store(&app_cpu, sched_getcpu());
		while (now() - t1 < gap_ns)
			x = x * 1664525 + 1013904223;
	}
	return (void *)(uintptr_t)(x & 1);
}

static int cmp(const void *a, const void *b)
{
	uint32_t x = *(uint32_t *)a, y = *(uint32_t *)b;
	return x < y ? -1 : x > y;
}

static void run(void)
{
	size_t len = (size_t)threads * PAGES_PER_THREAD * PAGE;
	base = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(base, len, MADV_NOHUGEPAGE);
	/* bring the host's backing in first, it costs more than what we measure */
	memset(base, 1, len);
	madvise(base, len, MADV_DONTNEED);
	int handlers = 0;
	pthread_t h[64], a[MAX_THREADS];
	atomic_store(&stop, 0);
	if (kind != KERNEL) {
		uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
		if (uffd < 0)
			die("userfaultfd");
		struct uffdio_api api = { .api = UFFD_API,
			.features = kind == SIGBUS_ ? UFFD_FEATURE_SIGBUS : 0 };
		if (ioctl(uffd, UFFDIO_API, &api))
			die("UFFDIO_API");
		struct uffdio_register r = { .range = { (uintptr_t)base, len },
			.mode = UFFDIO_REGISTER_MODE_MISSING };
		if (ioctl(uffd, UFFDIO_REGISTER, &r))
			die("UFFDIO_REGISTER");
		if (kind != SIGBUS_)
			handlers = kind == PERCPU || kind == POLLER || kind == GAP ? ncpu : 1;
	}
	for (intptr_t i = 0; i < handlers; i++)
		pthread_create(&h[i], 0, handler, (void *)i);
	uint64_t t0 = now();
	for (intptr_t i = 0; i < threads; i++)
		pthread_create(&a[i], 0, app, (void *)i);
	for (int i = 0; i < threads; i++)
		pthread_join(a[i], 0);
	double wall = now() - t0;
	atomic_store(&stop, 1);
	for (int i = 0; i < handlers; i++)
		pthread_join(h[i], 0);
	size_t n = (size_t)threads * PAGES_PER_THREAD;
	uint32_t *all = malloc(n * sizeof *all);
	for (int i = 0; i < threads; i++)
		memcpy(all + (size_t)i * PAGES_PER_THREAD, lat[i], sizeof lat[i]);
	qsort(all, n, sizeof *all, cmp);
	printf("%-8s %d thread%c gap %5.1f us: median %6.2f us  p99 %7.2f  p99.9 %8.2f  %7.1f K faults/s\n",
	       names[kind], threads, threads > 1 ? 's' : ' ', gap_ns / 1e3, all[n / 2] / 1e3,
	       all[n * 99 / 100] / 1e3, all[n * 999 / 1000] / 1e3, n / wall * 1e6);
	free(all);
	munmap(base, len);
	if (uffd >= 0)
		close(uffd), uffd = -1;
}

int main(void)
{
	ncpu = sysconf(_SC_NPROCESSORS_ONLN);
	setvbuf(stdout, 0, _IOLBF, 0);
	struct sigaction sa = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO };
	sigaction(SIGBUS, &sa, 0);
	memset(source, 7, sizeof source);
	double gaps[] = { 2e3, 20e3 };
	for (threads = 1; threads <= 2; threads++)
		for (int g = 0; g < 2; g++) {
			gap_ns = gaps[g];
			for (kind = 0; kind < KINDS; kind++) {
				pin_app = kind == PINNED;
				if (kind == PINNED && threads > 1)
					continue;
				for (int rep = 0; rep < 2; rep++)
					run();
			}
		}
	return 0;
}
