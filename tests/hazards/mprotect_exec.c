/* Machine code in anonymous memory, as a just-in-time compiler makes it: it is
 * evicted and runs again, an instruction that crosses two absent pages too. */
#include "hazard.h"

int main(void)
{
#if !defined(__x86_64__)
    skip("the machine code is for x86-64");
#else
    size_t bytes = 2 * QUARTER, functions = bytes / 512;
    unsigned char *code = map(bytes);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < functions; i++) {
            /* mov eax, imm32; ret. Every eighth crosses the border of a page. */
            unsigned char *at = code + i * 512 + (i % 8 == 7 ? 509 : 0);
            uint32_t value = (uint32_t)mix(i + (size_t)round);
            if (i + 1 == functions)
                at = code + i * 512;
            at[0] = 0xb8;
            memcpy(at + 1, &value, 4);
            at[5] = 0xc3;
            if (i % 8 == 7 && i + 1 < functions)
                i++; /* it covers the beginning of the next slot */
        }
        SYS(mprotect(code, bytes, PROT_READ | PROT_EXEC));
        churn();
        for (int pass = 0; pass < 2; pass++) {
            for (size_t i = 0; i < functions; i++) {
                unsigned char *at = code + i * 512 + (i % 8 == 7 ? 509 : 0);
                if (i + 1 == functions)
                    at = code + i * 512;
                uint32_t (*function)(void) = (uint32_t (*)(void))(void *)at;
                uint32_t got = function();
                CHECKF(got == (uint32_t)mix(i + (size_t)round), "function %zu returned %#x", i, got);
                if (i % 8 == 7 && i + 1 < functions)
                    i++;
            }
            churn();
        }
        SYS(mprotect(code, bytes, PROT_READ | PROT_WRITE));
    }
    /* Writable and executable at once. */
    unsigned char *both = mmap(NULL, 2 * QUARTER, PROT_READ | PROT_WRITE | PROT_EXEC,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (both == MAP_FAILED)
        return 0; /* a hardened kernel may refuse */
    for (uint32_t i = 0; i < 128; i++) {
        both[i * PAGE] = 0xb8;
        memcpy(both + i * PAGE + 1, &i, 4);
        both[i * PAGE + 5] = 0xc3;
    }
    churn();
    for (uint32_t i = 0; i < 128; i++)
        CHECK(((uint32_t (*)(void))(void *)(both + i * PAGE))() == i);
    return 0;
#endif
}
