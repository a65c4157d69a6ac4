/* linked.h: what a test can do with the implementation that it is linked with (linked.c), beside
   calling it. Include it after gpupool.h. A test of tests/unit has the implementation itself. */
#ifndef LINKED_H
#define LINKED_H

#include <sys/types.h>

uint64_t linked_now_ns(void); /* the implementation's own clock */

/* What the implementation reads files with: pread, or what a test puts there. */
extern ssize_t (*linked_pread)(int file, void *to, size_t bytes, off_t at);

/* As if the stream's thread had waited long for the others: its cache takes over what it can. */
void linked_crowd(gpupool_arena *arena, cudaStream_t stream);

/* The default arena of a device, if there is one, in whatever state it is. */
gpupool_arena *linked_default_arena(int device);

#endif
