/* Makes, writes, reads, maps, renames and deletes files, and touches memory in between: what a
 * recording has to have, in this order. Prints where it touched memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGES 8

static char *memory;

static void touch(const char *after)
{
	static int count;
	volatile char *place = memory + 4096 * count++;

	*place = 1;
	printf("%s %lx\n", after, (unsigned long)place);
	fflush(stdout);
}

int main(void)
{
	char page[4096];
	volatile char *map;
	char sum = 0;
	int made, other;

	memory = mmap(NULL, 16 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(page, 7, sizeof(page));
	made = open("made", O_RDWR | O_CREAT | O_EXCL, 0600);
	touch("create");
	for (int i = 0; i < PAGES; i++)
		if (write(made, page, sizeof(page)) != sizeof(page))
			return 1;
	touch("write");
	fsync(made);
	touch("fsync");
	if (pread(made, page, 100, 3 * 4096) != 100)
		return 1;
	touch("read");
	map = mmap(NULL, PAGES * 4096, PROT_READ, MAP_SHARED, made, 0);
	for (int i = 0; i < PAGES; i++)
		sum += map[4096 * i];
	munmap((void *)map, PAGES * 4096);
	touch("map");
	close(made);
	/* Its numbers may be given anew; the file is the same. */
	other = open("made", O_RDONLY);
	if (posix_fadvise(other, 4096, 0, POSIX_FADV_RANDOM))
		return 1;
	close(other);
	touch("again");
	/* The file that was there loses its name. */
	if (rename("made", "there"))
		return 1;
	touch("rename");
	unlink("there");
	touch("unlink");
	return sum == 7 * PAGES ? 0 : 1;
}
