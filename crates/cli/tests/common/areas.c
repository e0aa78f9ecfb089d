/* Stores a pattern to one place in every kind of area, and prints where. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile uint64_t data = 1, bss;

static void touch(const char *name, volatile uint64_t *place)
{
	*place = 42;
	printf("%s %lx\n", name, (unsigned long)place);
	fflush(stdout);
}

static void *thread(void *name)
{
	volatile uint64_t local;

	touch(name, &local);
	/* The heap's end is every thread's. */
	touch(*(char *)name == 'f' ? "brk-in-first" : "brk-in-second", sbrk(4096));
	return NULL;
}

int main(int argc, char **argv)
{
	volatile uint64_t local;
	pthread_t one, two;
	char *far, *file;
	FILE *backing = tmpfile();

	(void)argc, (void)argv;
	touch("data", &data);
	touch("bss", &bss);
	touch("stack", &local);
	touch("brk", sbrk(4096));
	far = mmap(NULL, 6ul << 30, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (far == MAP_FAILED || !backing || ftruncate(fileno(backing), 4096))
		return 1;
	touch("beyond-4GiB", (void *)(far + (5ul << 30)));
	file = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(backing), 0);
	if (file == MAP_FAILED)
		return 1;
	touch("file", (void *)file);
	if (pthread_create(&one, NULL, thread, "first-thread") || pthread_join(one, NULL) ||
	    pthread_create(&two, NULL, thread, "second-thread") || pthread_join(two, NULL))
		return 1;
	return 0;
}
