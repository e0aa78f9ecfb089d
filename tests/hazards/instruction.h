/* System calls by the instruction itself, past the C library: whoever watches its functions does not see
 * them. */
#ifndef INSTRUCTION_H
#define INSTRUCTION_H

#include "hazard.h"

/* As `syscall` of the C library returns, which takes as many arguments as the call has. */
static inline long instruction(long number, long a, long b, long c, long d, long e, long f)
{
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    register long sixth __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    if (result >= 0 || result < -4095)
        return result;
    errno = (int)-result;
    return -1;
}

#endif
