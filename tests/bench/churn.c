/* Churn for as long as one likes: churn [OPERATIONS [SEED [SOURCE]]], 100,000,000 of them else.
   Ends with status 1 when anything was not as it must be. */
#include "gpupool.h"
#include "churn_kit.h"
#include "machine.h"

#define LINES 20 /* of progress */

static const char *const causes[CHURN_CAUSES] = {"none",        "the limit",  "too large",
                                                 "device full", "others",     "fragmented",
                                                 "pending",     "capturing"};

static uint64_t ops = 100000000, seed = 1;
static gpupool_source source = GPUPOOL_SOURCE_MAPPED;

static double gib(uint64_t bytes) { return (double)bytes / (double)GIB; }

static void show(churn *c, uint64_t start_ns) {
    gpupool_stats s = churn_look(c);
    double seconds = (double)(machine_now_ns() - start_ns) / 1e9;
    printf("%11llu ops %7.1f s %9.0f ops/s  reserved %6.2f  granted %6.2f  limit %6.2f GiB"
           "  %6zu blocks  %8llu stitches  %8llu failures\n",
           (unsigned long long)c->ops, seconds, (double)c->ops / seconds, gib(s.reserved.now),
           gib(s.granted.now), gib(c->limit), c->count, (unsigned long long)s.stitches,
           (unsigned long long)s.failures);
    fflush(stdout);
}

static void sum_up(const churn *c, const gpupool_stats *s) {
    printf("limit moved %llu times, %llu times below what blocks kept; %llu trims\n",
           (unsigned long long)c->limits, (unsigned long long)c->lowered,
           (unsigned long long)c->trims);
    printf("peak reserved %.2f GiB, peak granted %.2f GiB: %.4f\n", gib(c->peak_reserved),
           gib(c->peak_granted), (double)c->peak_reserved / (double)c->peak_granted);
    printf("chunks got %llu, given back %llu; stitches made %llu, reused %llu; the host waited "
           "%llu times; records %.1f MiB\n",
           (unsigned long long)s->chunks_gained, (unsigned long long)s->chunks_lost,
           (unsigned long long)s->stitches, (unsigned long long)s->stitches_reused,
           (unsigned long long)s->host_syncs,
           (double)s->host_bytes / (double)MIB);
    printf("failures:");
    for (size_t i = 0; i < CHURN_CAUSES; i++)
        if (c->failures[i])
            printf(" %s %llu", causes[i], (unsigned long long)c->failures[i]);
    printf("; at the emptiest, live and asked were %.3f of the limit\n", c->emptiest);
    printf("of %llu failures looked into, %llu would have been met if each 2 MiB could move by "
           "itself\n",
           (unsigned long long)c->weighed, (unsigned long long)c->strict);
}

static void run(void) {
    churn c;
    churn_open(&c, source, seed);
    uint64_t start = machine_now_ns(), part = ops / LINES ? ops / LINES : 1;
    while (c.ops < ops && !atomic_load(&check_bad)) {
        churn_step(&c);
        if (c.ops % part == 0) show(&c, start);
    }
    if (c.ops % part) show(&c, start);
    gpupool_stats last = churn_close(&c);
    sum_up(&c, &last);
}

int main(int argc, char **argv) {
    if (machine_open() != 0) return EXIT_FAILURE;
    if (argc > 1) ops = strtoull(argv[1], NULL, 10);
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    if (argc > 3 && strcmp(argv[3], "device") == 0) source = GPUPOOL_SOURCE_DEVICE;
    printf("churn on: %s; %llu operations, seed %llu\n", machine_name(), (unsigned long long)ops,
           (unsigned long long)seed);
    check_run("churn", run, kit_prepare, kit_settle);
    return check_finish();
}
