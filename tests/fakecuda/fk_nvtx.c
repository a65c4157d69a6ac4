/* A tool that NVTX's memory extension talks to: it keeps what it is told, and fails the test when
 * that makes no sense. With the toolkit's header it is injected as a tool would be; with fakecuda's
 * own header its functions are NVTX's. */
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtMem.h>
#ifndef FAKECUDA_NVTX_MEM_H
#define NVTX_EXT_TYPES_GUARD
#include <nvtx3/nvtxDetail/nvtxExtTypes.h>
#endif

#include "fk.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct region {
    struct region *next;
    const char *at;
    size_t bytes;
    char name[64];
} region;

typedef struct heap {
    struct heap *next;
    const char *at;
    size_t bytes;
    region *regions;
} heap;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static heap *heaps;

/* The link to the region that begins there, in whatever heap. */
static region **find(const void *at) {
    for (heap *h = heaps; h; h = h->next)
        for (region **link = &h->regions; *link; link = &(*link)->next)
            if ((*link)->at == at) return link;
    return NULL;
}

static nvtxMemHeapHandle_t heap_register(nvtxDomainHandle_t domain, nvtxMemHeapDesc_t const *d) {
    const nvtxMemVirtualRangeDesc_t *range = d->typeSpecificDesc;
    heap *h = calloc(1, sizeof *h);
    (void)domain;
    if (!h || d->extCompatID != NVTX_EXT_COMPATID_MEM || d->structSize != sizeof *d ||
        d->usage != NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR ||
        d->type != NVTX_MEM_TYPE_VIRTUAL_ADDRESS || d->typeSpecificDescSize != sizeof *range)
        fk_fail("nvtxMemHeapRegister: a wrong description");
    if (!h) return NULL;
    h->at = range->ptr;
    h->bytes = range->size;
    pthread_mutex_lock(&lock);
    h->next = heaps;
    heaps = h;
    pthread_mutex_unlock(&lock);
    return (nvtxMemHeapHandle_t)(void *)h;
}

static void heap_unregister(nvtxDomainHandle_t domain, nvtxMemHeapHandle_t handle) {
    heap *h = (heap *)(void *)handle, **link = &heaps;
    (void)domain;
    pthread_mutex_lock(&lock);
    while (*link && *link != h) link = &(*link)->next;
    if (*link) *link = h->next;
    else fk_fail("nvtxMemHeapUnregister: no such heap");
    if (h->regions) fk_fail("nvtxMemHeapUnregister: regions are left in the heap");
    pthread_mutex_unlock(&lock);
    free(h);
}

static void regions_register(nvtxDomainHandle_t domain, nvtxMemRegionsRegisterBatch_t const *d) {
    const nvtxMemVirtualRangeDesc_t *range = d->regionDescElements;
    heap *h = (heap *)(void *)d->heap;
    region *r = calloc(1, sizeof *r);
    (void)domain;
    if (!r || d->structSize != sizeof *d || d->regionCount != 1 ||
        d->regionDescElementSize != sizeof *range)
        fk_fail("nvtxMemRegionsRegister: a wrong description");
    if (!r) return;
    r->at = range->ptr;
    r->bytes = range->size;
    pthread_mutex_lock(&lock);
    if (r->at < h->at || r->at + r->bytes > h->at + h->bytes)
        fk_fail("nvtxMemRegionsRegister: %p is not in its heap", range->ptr);
    for (const region *other = h->regions; other; other = other->next)
        if (r->at < other->at + other->bytes && other->at < r->at + r->bytes)
            fk_fail("nvtxMemRegionsRegister: %p overlaps %p", range->ptr, (const void *)other->at);
    r->next = h->regions;
    h->regions = r;
    pthread_mutex_unlock(&lock);
}

static void regions_unregister(nvtxDomainHandle_t domain,
                               nvtxMemRegionsUnregisterBatch_t const *d) {
    region **link, *gone = NULL;
    (void)domain;
    pthread_mutex_lock(&lock);
    link = find(d->refElements[0].pointer);
    if (link) {
        gone = *link;
        *link = gone->next;
    } else {
        fk_fail("nvtxMemRegionsUnregister: no region at %p", d->refElements[0].pointer);
    }
    pthread_mutex_unlock(&lock);
    free(gone);
}

static void regions_name(nvtxDomainHandle_t domain, nvtxMemRegionsNameBatch_t const *d) {
    region **link;
    (void)domain;
    pthread_mutex_lock(&lock);
    link = find(d->regionElements[0].region.pointer);
    if (link)
        snprintf((*link)->name, sizeof (*link)->name, "%s", d->regionElements[0].name.ascii);
    else
        fk_fail("nvtxMemRegionsName: no region at %p", d->regionElements[0].region.pointer);
    pthread_mutex_unlock(&lock);
}

/* ---- how it is reached ---- */

#ifdef FAKECUDA_NVTX_MEM_H
nvtxMemHeapHandle_t nvtxMemHeapRegister(nvtxDomainHandle_t domain, nvtxMemHeapDesc_t const *d) {
    return heap_register(domain, d);
}

void nvtxMemHeapUnregister(nvtxDomainHandle_t domain, nvtxMemHeapHandle_t h) {
    heap_unregister(domain, h);
}

void nvtxMemRegionsRegister(nvtxDomainHandle_t domain, nvtxMemRegionsRegisterBatch_t const *d) {
    regions_register(domain, d);
}

void nvtxMemRegionsUnregister(nvtxDomainHandle_t domain,
                              nvtxMemRegionsUnregisterBatch_t const *d) {
    regions_unregister(domain, d);
}

void nvtxMemRegionsName(nvtxDomainHandle_t domain, nvtxMemRegionsNameBatch_t const *d) {
    regions_name(domain, d);
}
#else
static int inject(nvtxExtModuleInfo_t *module) {
    intptr_t *slots = module->segments[0].functionSlots;
    if (module->moduleId != NVTX_EXT_MODULEID_MEM) return 0;
    slots[NVTX3EXT_CBID_nvtxMemHeapRegister] = (intptr_t)heap_register;
    slots[NVTX3EXT_CBID_nvtxMemHeapUnregister] = (intptr_t)heap_unregister;
    slots[NVTX3EXT_CBID_nvtxMemRegionsRegister] = (intptr_t)regions_register;
    slots[NVTX3EXT_CBID_nvtxMemRegionsUnregister] = (intptr_t)regions_unregister;
    slots[NVTX3EXT_CBID_nvtxMemRegionsName] = (intptr_t)regions_name;
    return 1;
}

extern NvtxExtInitializeInjectionFunc_t InitializeInjectionNvtxExtension_fnptr;
NvtxExtInitializeInjectionFunc_t InitializeInjectionNvtxExtension_fnptr = inject;
#endif

/* ---- what it was told ---- */

long fake_nvtx_heaps(void) {
    long n = 0;
    pthread_mutex_lock(&lock);
    for (const heap *h = heaps; h; h = h->next) n++;
    pthread_mutex_unlock(&lock);
    return n;
}

long fake_nvtx_regions(void) {
    long n = 0;
    pthread_mutex_lock(&lock);
    for (const heap *h = heaps; h; h = h->next)
        for (const region *r = h->regions; r; r = r->next) n++;
    pthread_mutex_unlock(&lock);
    return n;
}

int fake_nvtx_region(const void *at, size_t *bytes, char name[64]) {
    region **link;
    pthread_mutex_lock(&lock);
    link = find(at);
    if (link) {
        *bytes = (*link)->bytes;
        memcpy(name, (*link)->name, sizeof (*link)->name);
    }
    pthread_mutex_unlock(&lock);
    return link != NULL;
}
