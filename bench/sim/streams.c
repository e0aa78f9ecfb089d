/* The streams of the exact engine's benchmark as a program, for its peers:
 * streams gups|seq|mix UPDATES. Prints the number of its own loads and stores. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	uint64_t updates = strtoull(argv[2], NULL, 10);
	uint64_t elements = (uint64_t)1 << 27; /* 1 GiB of eight bytes */
	uint64_t *array = calloc(elements, 8);
	uint64_t x = 0x123456789abcdef1u;
	if (array == NULL)
		return 1;
	if (strcmp(argv[1], "gups") == 0) {
		for (uint64_t i = 0; i < updates; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			uint64_t span = i % 10 != 0 ? elements / 10 : elements;
			array[(uint64_t)((unsigned __int128)x * span >> 64)] += 1;
		}
	} else if (strcmp(argv[1], "mix") == 0) {
		volatile uint64_t *memory = array, sum = 0;
		for (uint64_t i = 0; i < 2 * updates; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			uint64_t dice = x % 100;
			uint64_t span = dice < 90 ? 2048 : dice < 98 ? 131072 : elements;
			uint64_t at = (uint64_t)((unsigned __int128)x * span >> 64);
			if (i % 2)
				memory[at] = i;
			else
				sum += memory[at];
		}
	} else {
		volatile uint64_t *from = array, *to = array + elements / 2;
		for (uint64_t i = 0; i < updates; i++)
			to[i % (elements / 2)] = from[i % (elements / 2)];
	}
	printf("%llu\n", (unsigned long long)(2 * updates));
	return 0;
}
