/* One page, hot under the evictor: O_DIRECT reads into part of it while the
 * program writes to another part of the same page. Both must stay. */
#include "hazard.h"

static unsigned char *at;
enum { PAGES = 64 };
static atomic_bool stop;
static uint64_t counts[PAGES];

static void *writer(void *argument)
{
    (void)argument;
    for (size_t page = 0; !atomic_load(&stop); page = (page + 1) % PAGES) {
        volatile uint64_t *word = (uint64_t *)(at + page * PAGE);
        CHECKF(*word == counts[page], "page %zu: %llu additions instead of %llu", page,
               (unsigned long long)*word, (unsigned long long)counts[page]);
        *word = ++counts[page];
    }
    return NULL;
}

int main(void)
{
    int fd = temp_file_with(O_DIRECT);
    unsigned char *data = map(PAGES * PAGE);
    fill(data, PAGES * PAGE, 1);
    if (pwrite(fd, data, PAGES * PAGE, 0) == -1 && errno == EINVAL)
        skip("this filesystem refuses O_DIRECT");
    at = map(PAGES * PAGE);
    if (pread(fd, at + 2048, 2048, 0) == -1 && errno == EINVAL)
        skip("this filesystem wants O_DIRECT in whole pages");
    struct churner churner;
    churner_start(&churner);
    pthread_t thread;
    PTHREAD(pthread_create(&thread, NULL, writer, NULL));
    for (size_t i = 0; i < 300; i++) {
        size_t page = i * 5 % PAGES;
        unsigned char *half = at + page * PAGE + 2048;
        memset(half, 0xdd, 2048);
        CHECK(SYS(pread(fd, half, 2048, (off_t)(page * PAGE + 2048))) == 2048);
        for (size_t j = 0; j < 2048; j++)
            CHECKF(half[j] == pattern_byte(1, page * PAGE + 2048 + j), "page %zu byte %zu: %#x", page,
                   2048 + j, half[j]);
    }
    atomic_store(&stop, true);
    PTHREAD(pthread_join(thread, NULL));
    churner_stop(&churner);
    return 0;
}
