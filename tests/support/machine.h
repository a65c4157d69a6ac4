/* machine.h: what a measurement runs on: a real GPU (GPUPOOL_TEST_GPU=1), or fakecuda. */
#ifndef MACHINE_H
#define MACHINE_H

#include <stdint.h>

#ifndef GPUPOOL_TEST_GPU
#define GPUPOOL_TEST_GPU 0
#endif

typedef struct machine_meter { /* readings since some past moment: only differences mean anything */
    uint64_t inside_ns;        /* real time spent inside simulated CUDA calls; 0 on a GPU */
    uint64_t driver_ns;        /* what those calls cost by the price list; 0 on a GPU */
    long calls;                /* of CUDA; on a GPU, of library_counted.c's */
} machine_meter;

int machine_open(void); /* call it first; 0, or -1 after a message on stderr */
int machine_close(void); /* last; -1 after a message: not all that was printed has arrived */
const char *machine_name(void);
int machine_is_simulated(void);
machine_meter machine_read(void);
uint64_t machine_now_ns(void);
/* on: from now the stream's work finishes only when a call waits for it, as behind a long kernel.
   0, or -1 on a GPU, where nothing does that. */
int machine_hold(void *stream, int on);
void machine_add_call(void); /* on a GPU, of CUDA, by any thread: see counted_cuda.h */

#endif
