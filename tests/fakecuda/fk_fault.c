/* Calls that fail on purpose: the n-th of one name, and by class.
 *
 * By class: a resource call asks for something that there may be too little of (memory, addresses,
 * a mapping, an event, a stream), and has changed nothing when it fails: the program can go on. Any
 * other call fails, as a rule, since the context is broken; and then every call fails for good. */
#include "fk.h"

#include <string.h>

typedef struct fk_fault {
    long n;                    /* calls until it fires; 0: none set */
    int  persist, error, on;   /* on: fired, and goes on firing */
} fk_fault;

static struct {
    fk_fault resource, other, one[FK_CALL_COUNT];
    int      spared[FK_CALL_COUNT];
    int      paused;
    long     fired;
} fk;

static int fk_fires(fk_fault *fault) {
    if (fault->on) return 1;
    if (fault->n <= 0 || --fault->n > 0) return 0;
    fault->on = fault->persist;
    return 1;
}

static void fk_set(fk_fault *fault, long n, int persist, int error) {
    memset(fault, 0, sizeof *fault);
    fault->n = n > 0 ? n : 0;
    fault->persist = persist;
    fault->error = error;
}

static int fk_usual(int traits) {
    return traits & FK_ALLOC ? (int)cudaErrorMemoryAllocation : (int)cudaErrorUnknown;
}

/* A context that is broken refuses all that it is asked. */
static int fk_fault_by_class(int traits) {
    fk_fault *mine = traits & FK_RESOURCE ? &fk.resource : &fk.other;
    if (fk.other.on) return fk.other.error;
    return fk_fires(mine) ? mine->error : 0;
}

int fk_fault_of(fk_call call, int traits) {
    int error = 0, by_class = 0;
    if (fk.paused) return 0;
    if (fk_fires(&fk.one[call])) error = fk.one[call].error ? fk.one[call].error : fk_usual(traits);
    if (!(traits & (FK_OWN | FK_UNDOES)) && !fk.spared[call]) by_class = fk_fault_by_class(traits);
    if (!error) error = by_class;
    fk.fired += error != 0;
    return error;
}

void fake_fail_call(const char *name, long n, int persist, int error) {
    int call;
    fk_lock();
    call = fk_named_call(name);
    if (call >= 0) fk_set(&fk.one[call], n, persist, error);
    fk_unlock();
}

FK_CONTROL(fake_fail_resource, (long n),
           fk_set(&fk.resource, n, 0, cudaErrorMemoryAllocation))
FK_CONTROL(fake_break, (long n), fk_set(&fk.other, n, 1, cudaErrorIllegalAddress))
FK_QUESTION(int, fake_is_broken, (void), fk.other.on)

/* Names with something between them. */
static void fk_spare(const char *names) {
    char one[64];
    int length, call;
    memset(fk.spared, 0, sizeof fk.spared);
    while (names && sscanf(names, "%63[A-Za-z0-9]%n", one, &length) == 1) {
        call = fk_named_call(one);
        if (call >= 0) fk.spared[call] = 1;
        names += length;
        names += strspn(names, ", ");
    }
}

FK_CONTROL(fake_fail_except, (const char *names), fk_spare(names))

void fk_faults_clear(void) { memset(&fk, 0, sizeof fk); }

FK_CONTROL(fake_fail_pause, (int on), fk.paused = on)
FK_CONTROL(fake_fail_clear, (void), fk_faults_clear())
FK_QUESTION(long, fake_fail_fired, (void), fk.fired)
