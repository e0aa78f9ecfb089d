/* Where `updates` has its memory: the plugin knows its accesses by that. */
#ifndef ARENA_H
#define ARENA_H

#define ARENA 0x200000000000u
/* No arena is larger. */
#define ARENA_MOST 0x40000000u
/* A store here says to the plugin that a mark was reached. */
#define BELL 0x1fff00000000u

#endif
