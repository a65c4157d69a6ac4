/* demo: a recorded GPT-2 training run through a gpupool arena, and a table of how that went. */
#include "replay_run.h"

#include <stdlib.h>

#define TRACE_FILE "tests/traces/gpt2var.trace.gz"
#define SVG_FILE "build/demo.svg"

static void print_table(const trace *t, const replay_result *r) {
    double live = (double)t->peak_live_bytes, reserved = (double)r->peak_reserved_bytes;
    const char *priced = machine_is_simulated() ? "a price for each CUDA call" : "CUDA included";
    printf("  peak live memory    %8.2f GB\n", live / 1e9);
    printf("  reserved by gpupool %8.2f GB   %5.3f of what is live\n", reserved / 1e9,
           reserved / live);
    printf("\n  an operation, cold  %8.0f ns   the first pass, %s\n", r->ns[0], priced);
    printf("  an operation, warm  %8.0f ns   the third\n", r->ns[2]);
    if (machine_is_simulated())
        printf("  CUDA calls made     %8ld      %ld in the third pass\n", r->calls[0], r->calls[2]);
    printf("  failures            %8zu\n", r->failures);
}

static int run(const trace *t) {
    replay_options options = {.config = {.name = "GPT-2 training"}, .svg = SVG_FILE};
    replay_result r;
    gpupool_result why;
    if (replay_run(&options, t, &r, &why) != 0) return EXIT_FAILURE;
    print_table(t, &r);
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
    printf("a recorded GPT-2 training run, batch and length varying: %zu allocations and frees, "
           "%d times over\n\n",
           t.events, REPLAY_PASSES);
    int status = run(&t);
    trace_free(&t);
    return machine_close() != 0 ? EXIT_FAILURE : status;
}
