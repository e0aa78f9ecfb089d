/* The programs of Kindle's Figures 5 and 6, to be recorded:
 *
 *   pagerank  GAP benchmark suite's pr: pulling, until scores settle
 *   sssp      Graph500's third kernel: delta-stepping on edges with weights
 *   ycsb      YCSB's workload B on a hash table: 95 % reads of a record of
 *             1 KiB, 5 % updates of a field, keys scrambled Zipfian
 *
 * Graphs are Kronecker graphs with Graph500's parameters, 16 edges a vertex.
 *
 *   cc -O2 -o programs programs.c -lm && ./programs pagerank 16
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint64_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static double uniform(void)
{
	return (double)(draw() >> 11) / (double)(1ull << 53);
}

static void *allocate(size_t count, size_t size)
{
	void *memory = calloc(count, size);

	if (!memory) {
		fprintf(stderr, "programs: out of memory\n");
		exit(1);
	}
	return memory;
}

struct graph {
	uint32_t vertices;
	uint64_t *offsets;
	uint32_t *targets;
	uint8_t *weights;
};

/* Graph500: the quadrants' probabilities are 0.57, 0.19, 0.19 and 0.05. */
static uint32_t endpoints(int scale, uint32_t *other)
{
	uint32_t from = 0, to = 0;

	for (int bit = 0; bit < scale; bit++) {
		double p = uniform();
		int down = p > 0.76, right = (p > 0.57 && p <= 0.76) || p > 0.95;

		from |= (uint32_t)down << bit;
		to |= (uint32_t)right << bit;
	}
	*other = to;
	return from;
}

static struct graph kronecker(int scale)
{
	struct graph graph = { .vertices = 1u << scale };
	size_t edges = (size_t)16 << scale;
	uint32_t (*list)[2] = allocate(edges, sizeof *list);
	uint64_t *next;

	graph.offsets = allocate(graph.vertices + 1, sizeof *graph.offsets);
	for (size_t i = 0; i < edges; i++) {
		list[i][0] = endpoints(scale, &list[i][1]);
		graph.offsets[list[i][0] + 1]++;
		graph.offsets[list[i][1] + 1]++;
	}
	for (uint32_t v = 0; v < graph.vertices; v++)
		graph.offsets[v + 1] += graph.offsets[v];
	graph.targets = allocate(2 * edges, sizeof *graph.targets);
	graph.weights = allocate(2 * edges, sizeof *graph.weights);
	next = allocate(graph.vertices, sizeof *next);
	memcpy(next, graph.offsets, graph.vertices * sizeof *next);
	for (size_t i = 0; i < edges; i++) {
		uint8_t weight = (uint8_t)(1 + draw() % 255);

		for (int side = 0; side < 2; side++) {
			uint64_t place = next[list[i][side]]++;

			graph.targets[place] = list[i][!side];
			graph.weights[place] = weight;
		}
	}
	free(next);
	free(list);
	return graph;
}

static void pagerank(struct graph *graph)
{
	uint32_t n = graph->vertices;
	float *scores = allocate(n, sizeof *scores), *out = allocate(n, sizeof *out);
	double error = 1;
	int iteration = 0;

	for (uint32_t v = 0; v < n; v++)
		scores[v] = 1.0f / (float)n;
	for (; iteration < 20 && error >= 1e-4; iteration++) {
		error = 0;
		for (uint32_t v = 0; v < n; v++) {
			uint64_t degree = graph->offsets[v + 1] - graph->offsets[v];

			out[v] = scores[v] / (float)(degree ? degree : 1);
		}
		for (uint32_t v = 0; v < n; v++) {
			float sum = 0, old = scores[v];

			for (uint64_t i = graph->offsets[v]; i < graph->offsets[v + 1]; i++)
				sum += out[graph->targets[i]];
			scores[v] = 0.15f / (float)n + 0.85f * sum;
			error += fabs((double)(scores[v] - old));
		}
	}
	printf("pagerank: %d iterations, error %g\n", iteration, error);
}

/* Searches; Graph500 has 64, one is long enough to be recorded. */
#define ROOTS 1
#define DELTA 32
#define BUCKETS 64

struct bucket {
	uint32_t *vertices;
	size_t count, room;
};

static void put(struct bucket *bucket, uint32_t vertex)
{
	if (bucket->count == bucket->room) {
		bucket->room = bucket->room ? 2 * bucket->room : 1024;
		bucket->vertices = realloc(bucket->vertices,
					   bucket->room * sizeof *bucket->vertices);
		if (!bucket->vertices)
			exit(1);
	}
	bucket->vertices[bucket->count++] = vertex;
}

static void sssp(struct graph *graph)
{
	static struct bucket buckets[BUCKETS];
	uint32_t *distance = allocate(graph->vertices, sizeof *distance);
	uint64_t relaxed = 0;

	for (int root = 0; root < ROOTS; root++) {
		uint32_t source;

		do
			source = (uint32_t)(draw() % graph->vertices);
		while (graph->offsets[source] == graph->offsets[source + 1]);
		memset(distance, 0xff, graph->vertices * sizeof *distance);
		distance[source] = 0;
		put(&buckets[0], source);
		/* A distance grows by at most 255 a step: a ring of buckets is enough. */
		for (uint64_t current = 0, idle = 0; idle < BUCKETS; current++, idle++) {
			struct bucket *bucket = &buckets[current % BUCKETS];

			while (bucket->count) {
				uint32_t v = bucket->vertices[--bucket->count];
				uint32_t base = distance[v];

				idle = 0;
				if (base / DELTA != current)
					continue;
				for (uint64_t i = graph->offsets[v]; i < graph->offsets[v + 1]; i++) {
					uint32_t w = graph->targets[i];
					uint32_t length = base + graph->weights[i];

					if (length < distance[w]) {
						distance[w] = length;
						put(&buckets[length / DELTA % BUCKETS], w);
						relaxed++;
					}
				}
			}
		}
	}
	printf("sssp: %llu relaxations\n", (unsigned long long)relaxed);
}

#define RECORD 1024
#define THETA 0.99

static uint64_t fnv(uint64_t value)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (int i = 0; i < 8; i++, value >>= 8)
		hash = (hash ^ (value & 0xff)) * 0x100000001b3u;
	return hash;
}

/* Scrambled Zipfian keys: Gray et al., SIGMOD 1994, as YCSB has it. */
struct zipf {
	uint64_t keys;
	double zeta, eta;
};

static struct zipf zipf(uint64_t keys)
{
	struct zipf zipf = { .keys = keys };

	for (uint64_t key = 0; key < keys; key++)
		zipf.zeta += pow((double)(key + 1), -THETA);
	zipf.eta = (1 - pow(2.0 / (double)keys, 1 - THETA)) /
		   (1 - (1 + pow(0.5, THETA)) / zipf.zeta);
	return zipf;
}

static uint64_t draw_key(const struct zipf *zipf)
{
	double u = uniform(), scaled = u * zipf->zeta;
	uint64_t rank = scaled < 1 ? 0 : scaled < 1 + pow(0.5, THETA) ? 1
		: (uint64_t)((double)zipf->keys *
			     pow(zipf->eta * u - zipf->eta + 1, 1 / (1 - THETA)));

	return fnv(rank < zipf->keys ? rank : zipf->keys - 1) % zipf->keys;
}

struct entry {
	uint64_t key;
	char *record;
};

static void ycsb(uint64_t keys, uint64_t operations)
{
	uint64_t mask = 1, found = 0, sum = 0;
	struct zipf choice = zipf(keys);
	struct entry *table;

	while (mask < 2 * keys)
		mask *= 2;
	table = allocate(mask, sizeof *table);
	mask--;
	for (uint64_t key = 0; key < keys; key++) {
		uint64_t slot = fnv(key) & mask;

		while (table[slot].record)
			slot = (slot + 1) & mask;
		table[slot] = (struct entry){ key, malloc(RECORD) };
		if (!table[slot].record)
			exit(1);
		memset(table[slot].record, (int)key, RECORD);
	}
	for (uint64_t i = 0; i < operations; i++) {
		uint64_t key = draw_key(&choice);
		uint64_t slot = fnv(key) & mask;

		while (table[slot].record && table[slot].key != key)
			slot = (slot + 1) & mask;
		if (!table[slot].record)
			continue;
		found++;
		if (draw() % 100 < 5) {
			memset(table[slot].record + draw() % 10 * 100, (int)i, 100);
		} else {
			char copy[RECORD];

			memcpy(copy, table[slot].record, RECORD);
			sum += (unsigned char)copy[draw() % RECORD];
		}
	}
	printf("ycsb: %llu of %llu found, %llu\n", (unsigned long long)found,
	       (unsigned long long)operations, (unsigned long long)sum);
}

/* The same workload as commands for redis-cli. */
static void ycsb_for_redis(uint64_t keys, uint64_t operations)
{
	struct zipf choice = zipf(keys);
	char record[RECORD + 1];

	for (uint64_t key = 0; key < keys; key++) {
		memset(record, 'a' + (int)(key % 26), RECORD);
		record[RECORD] = 0;
		printf("SET user%llu %s\n", (unsigned long long)key, record);
	}
	memset(record, 'z', 100);
	record[100] = 0;
	for (uint64_t i = 0; i < operations; i++) {
		unsigned long long key = draw_key(&choice);

		if (draw() % 100 < 5)
			printf("SETRANGE user%llu %d %s\n", key, (int)(draw() % 10 * 100),
			       record);
		else
			printf("GET user%llu\n", key);
	}
}

int main(int argc, char **argv)
{
	int scale = argc > 2 ? atoi(argv[2]) : 16;

	if (argc < 2 || scale < 4 || scale > 26) {
		fprintf(stderr, "usage: programs pagerank|sssp|ycsb|ycsb-for-redis [SCALE]\n");
		return 2;
	}
	if (!strncmp(argv[1], "ycsb", 4)) {
		/* Records of 1 KiB for a quarter of the vertices that a graph would have. */
		uint64_t keys = (uint64_t)1 << (scale - 2), operations = (uint64_t)1 << (scale + 3);

		if (!strcmp(argv[1], "ycsb-for-redis"))
			ycsb_for_redis(keys, operations / 16);
		else
			ycsb(keys, operations);
		return 0;
	}
	struct graph graph = kronecker(scale);
	if (!strcmp(argv[1], "pagerank"))
		pagerank(&graph);
	else if (!strcmp(argv[1], "sssp"))
		sssp(&graph);
	else
		return 2;
	return 0;
}
