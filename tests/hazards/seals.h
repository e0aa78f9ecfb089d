/* Memory that is sealed (mseal, Linux 6.10): it stays mapped where it is, for good. */
#ifndef SEALS_H
#define SEALS_H

#include "hazard.h"

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
/* Older C libraries have none. */
extern int mseal(void *, size_t, unsigned long) __attribute__((weak));

static inline int seal(void *at, size_t bytes, bool by_number)
{
    if (!by_number && mseal)
        return mseal(at, bytes, 0);
    return (int)syscall(SYS_mseal, at, bytes, 0ul);
}

static inline bool has_seals(void)
{
    return seal(NULL, 0, true) == 0;
}

#endif
