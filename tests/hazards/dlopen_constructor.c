/* A library's constructor uses more memory than there is, for the first time in this
 * program: with the loader's lock held, which whoever begins to manage must not need. */
#include "hazard.h"
#include <dlfcn.h>

static const char source[] =
    "#include <sys/mman.h>\n"
    "enum { BYTES = 3 << 20 };\n"
    "unsigned char *block;\n"
    "__attribute__((constructor)) static void begin(void)\n"
    "{\n"
    "    block = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n"
    "    for (int i = 0; i < BYTES; i++)\n"
    "        block[i] = (unsigned char)(i * 7 + i / 4096);\n"
    "}\n"
    "__attribute__((destructor)) static void end(void) { munmap(block, BYTES); }\n"
    "long wrong(void)\n"
    "{\n"
    "    long n = 0;\n"
    "    for (int i = 0; i < BYTES; i++)\n"
    "        n += block[i] != (unsigned char)(i * 7 + i / 4096);\n"
    "    return n;\n"
    "}\n";

int main(void)
{
    int file = (int)SYS(open("library.c", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    CHECK(write(file, source, sizeof source - 1) == (ssize_t)sizeof source - 1);
    SYS(close(file));
    /* The compiler is not what is tested. */
    if (system("env -u LD_PRELOAD ${CC:-cc} -shared -fPIC -O1 -o library.so library.c"))
        skip("no C compiler");
    for (int round = 0; round < 2; round++) {
        void *library = dlopen("./library.so", RTLD_NOW);
        CHECKF(library, "dlopen: %s", dlerror());
        churn();
        long (*wrong)(void) = (long (*)(void))dlsym(library, "wrong");
        CHECK(wrong);
        CHECKF(wrong() == 0, "%ld bytes are wrong", wrong());
        CHECK(dlclose(library) == 0);
    }
    return 0;
}
