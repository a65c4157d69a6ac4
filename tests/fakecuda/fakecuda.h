/* fakecuda.h: the controls of a GPU made of ordinary memory.
 *
 * fakecuda implements, on the CPU, the CUDA runtime and driver calls that gpupool.h and its tests
 * make, and is linked in CUDA's place. A program under test includes only the CUDA headers; a test
 * includes this file as well, to choose how work runs, to run fake kernels, to make calls fail, and
 * to ask what went wrong. Every function here may be called from any thread.
 *
 * Sources: all fk_*.c beside this file. Flags: -I. -Iinclude -pthread (or the toolkit's own include
 * directory in place of -Iinclude). */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- how queued work runs ---- */

typedef enum fake_run_mode {
    FAKE_EAGER = 0,  /* work runs when it is queued, unless its stream is held (fake_hold) */
    FAKE_STEPPED,    /* work queues until the test steps it, or a synchronising call needs it */
    FAKE_THREADED    /* four worker threads run whatever is ready, in random order */
} fake_run_mode;

void fake_mode(fake_run_mode mode);      /* runs all queued work first */
int  fake_step(cudaStream_t stream);     /* runs one operation; 0: queue empty, or it must wait */
int  fake_run(cudaStream_t stream);      /* runs what the stream has queued, with what that needs */
int  fake_run_all(void);                 /* runs all that is ready; all three return how many ran */
int  fake_pending(cudaStream_t stream);  /* operations queued and not yet run */
/* on: the stream runs nothing, as behind a long kernel, until this is called with 0. A call that
   waits lets through what it needs; with FAKE_FIRM it does not, and waits until another thread has
   called this with 0. */
#define FAKE_FIRM 2
void fake_hold(cudaStream_t stream, int on);
/* So many operations a stream takes that have not run (default 1020; 0: any number). Who gives it
   one more waits in its full queue, and so does meanwhile, in any thread, whoever makes an event or
   a stream, destroys a stream, allocates memory or pins it. Mapping calls and the rest do not. */
void fake_queue(int operations);
int  fake_stuck(void);                   /* threads that wait in a full queue now */

/* ---- work ---- */

#define FAKE_BYTE(b) ((unsigned)(unsigned char)(b) + 1u)

typedef struct fake_access {
    const void *address;
    size_t      bytes;
    int         write;  /* 1: writes, 0: reads */
    unsigned    value;  /* FAKE_BYTE(b): fill with b, or verify that every byte is b. 0: neither */
} fake_access;

/* Stream 0 is the legacy stream here, however the test is compiled. A name lasts as long as the
   memory that it is told of: a literal. */
cudaError_t fake_kernel(cudaStream_t stream, const char *name, const fake_access *accesses, int n);
cudaError_t fake_write(cudaStream_t stream, const char *name, void *to, size_t bytes, int byte);
cudaError_t fake_read(cudaStream_t stream, const char *name, const void *from, size_t bytes,
                      int byte);         /* byte outside 0..255: touches without verifying */
/* The host reads or writes memory itself; a failure if work that touches it may be in flight. */
void fake_host_access(const void *address, size_t bytes, int write, const char *name);

/* ---- what went wrong ---- */

long        fake_failures(void);         /* races, stray touches, wrong bytes, early releases */
const char *fake_failure_text(void);     /* the first since the last clear; "" if none */
void        fake_clear_failures(void);   /* misuses too */
long        fake_misuses(void);          /* dead or foreign handles: real CUDA crashes, or may */
const char *fake_misuse_text(void);      /* the newest; "" if none */
void        fake_quiet(int on);          /* 1: do not print failures and misuses to stderr */
void        fake_oracle(int on);         /* the race oracle; on by default */

/* ---- faults: a call that is made to fail has no effect ---- */

/* The n-th call of that name from now, and with persist all after it. n below 1 clears. */
void fake_fail_call(const char *name, long n, int persist, int error); /* error 0: the usual one */
/* By class. A resource call (memory, addresses, cuMemMap and cuMemSetAccess, an event, a stream, an
   import) that fails has changed nothing: the n-th from now answers that memory is out, once. */
void fake_fail_resource(long n);
/* The n-th other call from now, and every call after it, answers cudaErrorIllegalAddress, as with a
   context that a kernel has broken; but for popping and releasing a context. */
void fake_break(long n);
int  fake_is_broken(void);
/* "cudaFree,cuMemUnmap": those by class spare these */
void fake_fail_except(const char *names);
void fake_fail_pause(int on);            /* 1: the calls from here on are the test's own: none
                                            fails, and none counts; 0: as before */
void fake_fail_clear(void);              /* drops all of the above */
long fake_fail_fired(void);              /* calls failed on purpose since the last clear */
/* Before the n-th call of that name from now, run this, as if another thread came in between. */
void fake_before_call(const char *name, long n, void (*run)(void *), void *user);

/* ---- counters ---- */

long     fake_calls(const char *name);   /* calls of that name, failed ones too; NULL: all */
/* Shows the count of each of CUDA's calls. see makes no call of CUDA or fakecuda. */
void     fake_each_call(void (*see)(void *user, const char *name, long calls), void *user);
uint64_t fake_driver_ns(void);           /* what the calls would have cost, by the price list */
uint64_t fake_inside_ns(void);           /* real time spent inside fake calls, all threads */
void     fake_reset_counters(void);

/* ---- the machine ---- */

long   fake_reset(void);                 /* drops everything, restores every default; returns and
                                            prints how many objects had been left */
long   fake_live_objects(void);
void   fake_devices(int n);              /* 1 to 4; default 2 */
void   fake_device_memory(int device, size_t bytes);   /* default 140 GiB each */
void   fake_other_process(int device, size_t bytes);   /* device memory that someone else holds: of
                                                         what is free, no more than there is */
void   fake_device_vmm(int device, int supported);     /* default 1 */
void   fake_device_peers(int device, int reachable);   /* by other devices; default 1 */
size_t fake_used_bytes(int device);      /* device memory held by this process, whatever number of
                                            addresses it is mapped at */
long   fake_mappings(void);              /* of handles: one mapped at two addresses counts twice */
void   fake_pinned_limit(size_t bytes);  /* 0 (default): none */
size_t fake_pinned_bytes(void);
size_t fake_pinned_peak(void);

#ifdef __cplusplus
}
#endif
#endif
