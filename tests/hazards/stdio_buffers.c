/* Standard I/O with large buffers: the C library's own calls, inside its
 * functions, read and write absent memory that the program never names. */
#include "hazard.h"

int main(void)
{
    char name[64];
    sprintf(name, "hazard-stdio-%d.tmp", (int)getpid());
    size_t buffer = 512 * KIB, lines = 25000;
    char *first = map(buffer), *second = malloc(buffer);
    CHECK(second);
    FILE *out = fopen(name, "w");
    CHECK(out);
    CHECK(setvbuf(out, first, _IOFBF, buffer) == 0);
    for (size_t i = 0; i < lines; i++) {
        CHECK(fprintf(out, "%zu %016llx\n", i, (unsigned long long)mix(i)) > 0);
        if (i % 20000 == 10000)
            churn();
    }
    CHECK(fclose(out) == 0);
    FILE *in = fopen(name, "r");
    CHECK(in);
    CHECK(setvbuf(in, second, _IOFBF, buffer) == 0);
    char *line = NULL;
    size_t room = 0;
    for (size_t i = 0; i < lines; i++) {
        char want[64];
        sprintf(want, "%zu %016llx\n", i, (unsigned long long)mix(i));
        CHECK(getline(&line, &room, in) > 0);
        CHECKF(strcmp(line, want) == 0, "line %zu is %s", i, line);
        if (i % 20000 == 5000)
            churn();
    }
    CHECK(getline(&line, &room, in) == -1 && feof(in));
    free(line);
    CHECK(fclose(in) == 0);
    free(second);

    /* fread and fwrite of whole blocks, and a stream into memory. */
    size_t bytes = 3 * QUARTER;
    unsigned char *at = map(bytes), *back = map(bytes);
    fill(at, bytes, 1);
    churn();
    out = fopen(name, "w+");
    CHECK(out);
    CHECK(fwrite(at, 1, bytes, out) == bytes);
    rewind(out);
    churn();
    CHECK(fread(back, 1, bytes, out) == bytes);
    CHECK(fclose(out) == 0);
    unlink(name);
    churn();
    verify(back, bytes, 1);
    char *text = NULL;
    size_t length = 0;
    FILE *memory = open_memstream(&text, &length);
    CHECK(memory);
    for (size_t i = 0; i < 100000; i++)
        fprintf(memory, "%zu,", i);
    CHECK(fclose(memory) == 0);
    churn();
    const char *cursor = text;
    for (size_t i = 0; i < 100000; i++) {
        char *end;
        CHECK(strtoul(cursor, &end, 10) == i && *end == ',');
        cursor = end + 1;
    }
    CHECK(cursor == text + length);
    free(text);
    return 0;
}
