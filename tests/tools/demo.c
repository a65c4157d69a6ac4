/* demo: a recorded GPT-2 training run through a gpupool arena, and a table of how that went. */
#define _POSIX_C_SOURCE 200809L
#include "machine.h"
#include "pow2.h"
#include "replay_run.h"

#include <stdlib.h>
#include <unistd.h>

#define TRACE_FILE "tests/traces/gpt2var.trace.gz"
#define SVG_FILE "build/demo.svg"
#define BAR_WIDTH 24

static double gigabytes(uint64_t bytes) {
    return (double)bytes / 1e9;
}

/* On a terminal one line that changes; elsewhere a line a pass. */
static void show_progress(void *user, const replay_progress *at) {
    int terminal = *(const int *)user;
    int pass_ends = at->event == at->events;
    gpupool_stats stats;
    char bar[BAR_WIDTH + 1];
    if (gpupool_get_stats(at->arena, &stats) != GPUPOOL_OK) return;
    if (!terminal && !pass_ends) return;
    for (size_t i = 0; i < BAR_WIDTH; i++)
        bar[i] = i * at->events < at->event * BAR_WIDTH ? '#' : '.';
    bar[BAR_WIDTH] = 0;
    printf("%s  pass %d of %d  [%s]  live now %6.2f GB, at most %6.2f  reserved %6.2f GB%s",
           terminal ? "\r" : "", at->pass, REPLAY_PASSES, bar, gigabytes(stats.requested.now),
           gigabytes(stats.requested.peak), gigabytes(stats.reserved.now),
           terminal && !pass_ends ? "" : "\n");
    fflush(stdout);
}

static void print_buddy(const char *format, const replay_result *r, uint64_t buddy) {
    if (buddy) printf(format, gigabytes(buddy), (double)buddy / (double)r->peak_live_bytes);
    else printf("  a power-of-two buddy    not computed: host memory is out\n");
}

static void print_table(const replay_result *r, uint64_t buddy) {
    printf("\n  peak live memory        %8.2f GB\n", gigabytes(r->peak_live_bytes));
    printf("  reserved by gpupool     %8.2f GB   %5.3f of what is live\n",
           gigabytes(r->peak_reserved_bytes),
           (double)r->peak_reserved_bytes / (double)r->peak_live_bytes);
    print_buddy("  by a power-of-two buddy %8.2f GB   %5.3f\n", r, buddy);
    printf("\n  an operation, cold      %8.0f ns   the first pass, %s\n", r->pass[0].ns,
           machine_is_simulated() ? "with a price for each CUDA call" : "CUDA included");
    printf("  an operation, warm      %8.0f ns   the third\n", r->pass[2].ns);
    if (machine_is_simulated())
        printf("  CUDA calls made         %8ld      %ld in the third pass\n",
               r->calls, machine_all_calls(&r->pass[2].calls));
    printf("  failures                %8zu\n", r->failures);
}

static int run(const trace *t) {
    int terminal = isatty(STDOUT_FILENO);
    replay_options options = {.config = {.name = "GPT-2 training"},
                              .svg = SVG_FILE,
                              .on_progress = show_progress,
                              .user = &terminal};
    replay_result r;
    gpupool_result why;
    if (replay_run(&options, t, &r, &why) != 0) return EXIT_FAILURE;
    print_table(&r, pow2_reserved_bytes(t));
    printf("\n  a map of the arena at its fullest moment: " SVG_FILE "\n");
    if (!r.failures) return EXIT_SUCCESS;
    printf("\n%s\n", r.first_sentence);
    return EXIT_FAILURE;
}

int main(void) {
    trace t;
    if (machine_open() != 0 || trace_read(&t, TRACE_FILE) != 0) return EXIT_FAILURE;
    if (machine_is_simulated()) printf("running on a simulated GPU (no CUDA device here)\n");
    else printf("running on the GPU: %s\n", machine_name());
    printf("a recorded GPT-2 training run, batch and length varying: %zu allocations and frees\n\n",
           t.events);
    int status = run(&t);
    trace_free(&t);
    return machine_close() != 0 ? EXIT_FAILURE : status;
}
