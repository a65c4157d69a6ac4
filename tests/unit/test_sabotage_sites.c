/* What is counted for each line of source (GPUPOOL_SITES) is broken by hand, at every line that has
   blocks: gpupool_check names A1, and is content again when the damage is undone. */
// build: plain -DGPUPOOL_SITES=1
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
#include "arena_kit.h"

#if CHECK_FAKE
#include "sabotage_run.h"

static gpi_site *site_at(size_t at) {
    gpi_site *site = NULL;
    int bucket;
    do site = gpi_ledger_next_site(&arena->ledger, site, &bucket);
    while (site && (site->blocks == 0 || at--));
    return site;
}

static int site_above_its_peak(size_t at) {
    gpi_site *site = site_at(at);
    if (site) break_u64(&site->bytes_peak, site->bytes - 1);
    return site != NULL;
}

static int site_with_more_than_it_asked_for(size_t at) {
    gpi_site *site = site_at(at);
    if (site) break_u64(&site->allocs, site->blocks - 1);
    return site != NULL;
}

static int site_counted_elsewhere(size_t at) {
    gpi_site *site = site_at(at), *same = &arena->ledger.unknown;
    if (site) break_bytes(&site->same, &same, sizeof same);
    return site != NULL;
}

static int site_with_another_block(size_t at) {
    gpi_site *site = site_at(at);
    if (!site) return 0;
    break_u64(&site->allocs, site->allocs + 1);
    break_u64(&site->blocks, site->blocks + 1);
    return 1;
}

static int site_with_more_bytes(size_t at) {
    gpi_site *site = site_at(at);
    if (!site) return 0;
    break_u64(&site->bytes_peak, site->bytes_peak + 512);
    break_u64(&site->bytes, site->bytes + 512);
    return 1;
}

static const saboteur saboteurs[] = {
    PLAIN("A1", site_above_its_peak, BOTH),
    PLAIN("A1", site_with_more_than_it_asked_for, BOTH),
    PLAIN("A1", site_counted_elsewhere, BOTH),
    PLAIN("A1", site_with_another_block, BOTH),
    PLAIN("A1", site_with_more_bytes, BOTH),
};
#endif

int main(void) {
#if CHECK_FAKE
    run_saboteurs(saboteurs, KIT_COUNT(saboteurs));
#else
    check_skip("sabotage of sites", "needs fakecuda's controls");
#endif
    return check_finish();
}
