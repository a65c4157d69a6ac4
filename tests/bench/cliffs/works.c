/* The table of works. */
#include "draw.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

#define ALONE .streams = 1, .threads = 1
#define RANDOM(number, name, mib, longer)                                                          \
    {.id = "random-" name "-" #mib, .words = "random sizes: " name ", largest " #mib " MiB",       \
     .draw = draw_random, .count = number, .most = mib * MIB, .live = 16000 * MIB, ALONE,          \
     .long_only = longer}
#define EIGHT(id_, words_, draw_, count_, most_)                                                   \
    .id = id_, .words = words_, .draw = draw_, .count = count_, .most = most_, .threads = 8
#define RECORDED(id_, words_, traces_)                                                             \
    .id = id_, .words = words_, .draw = draw_traces, .count = (size_t)1 << 24, .traces = traces_,  \
    .threads = 1

const cliffs_work cliffs_works[] = {
    RANDOM(1000, "1k", 1, 1),       RANDOM(1000, "1k", 4, 1),
    RANDOM(1000, "1k", 64, 0),      RANDOM(1000, "1k", 256, 0),
    RANDOM(1000, "1k", 1024, 1),    RANDOM(1000, "1k", 4096, 1),
    RANDOM(10000, "10k", 1, 1),     RANDOM(10000, "10k", 4, 0),
    RANDOM(10000, "10k", 64, 0),    RANDOM(10000, "10k", 256, 0),
    RANDOM(10000, "10k", 1024, 0),  RANDOM(10000, "10k", 4096, 0),
    RANDOM(100000, "100k", 1, 1),   RANDOM(100000, "100k", 4, 1),
    RANDOM(100000, "100k", 64, 1),  RANDOM(100000, "100k", 256, 1),
    RANDOM(100000, "100k", 1024, 1), RANDOM(100000, "100k", 4096, 1),
    {.id = "trained", .words = "1,000 rounds of GPT-2, then 256 MiB", .draw = draw_random,
     .count = 10000, .most = 256 * MIB, .live = 16000 * MIB, ALONE, .rounds = 1000},
    {.id = "thrice", .words = "each size three times", .draw = draw_thrice, .count = 9000,
     .most = 256 * MIB, ALONE},
    {.id = "log-normal", .words = "log-normal, 512 B to 4 GiB", .draw = draw_log_normal,
     .count = 10000, .live = 8 * GIB, ALONE},
    {.id = "log-normal-90", .words = "log-normal, 90% of a limit", .draw = draw_log_normal,
     .count = 10000, .live = 8 * GIB, .limit = 8 * GIB / 9 * 10, ALONE},
    {.id = "growing", .words = "100 MiB that grow by 8 KiB", .draw = draw_growing, .count = 5000,
     .most = 1, .live = 100 * MIB, ALONE},
    {.id = "growing-64", .words = "64 buffers that grow by 8 KiB", .draw = draw_growing,
     .count = 12800, .most = 64, .live = 6400 * MIB, ALONE},
    {.id = "drift", .words = "2 MiB larger each round", .draw = draw_drift, .count = 1920, ALONE},
    {.id = "server", .words = "a server, 64 requests", .draw = draw_server, .count = 20000,
     .most = 4 * MIB, ALONE},
    {.id = "phases", .words = "phases, other sizes each", .draw = draw_phases, .count = 10240,
     .most = 256 * MIB, ALONE},
    {RECORDED("sync", "GPT-2 without streams", "gpt2var"), .streams = 1, .mode = CLIFFS_READY},
    {RECORDED("cudafree", "GPT-2 by cudaMalloc, cudaFree", "gpt2var"), .streams = 1,
     .mode = CLIFFS_AS_CUDA, .long_only = 1},
    {.id = "cudafree-loop", .words = "cudaMalloc, kernel, cudaFree", .draw = draw_loop,
     .count = 2000, .most = 16 * MIB, ALONE, .mode = CLIFFS_AS_CUDA},
    {RECORDED("streams-4", "GPT-2 spread over 4 streams", "gpt2var"), .streams = 4},
    {RECORDED("beside-2", "2 programs side by side", "resnet50 gnn"), .streams = 2},
    {RECORDED("beside-4", "4 programs side by side", "resnet50 gnn convnext frcnn"), .streams = 4},
    {.id = "handed", .words = "allocated on A, freed on B", .draw = draw_handed,
     .count = 20000, .most = 4 * MIB, .streams = 2, .threads = 1},
    {EIGHT("threads-own", "8 threads, 8 streams, 4 KiB", draw_pairs, 50000, 4 * KIB)},
    {EIGHT("threads-one", "8 threads, one stream, 4 KiB", draw_pairs, 50000, 4 * KIB), .shared = 1},
    {EIGHT("threads-churn", "8 threads churn to 1 MiB", draw_churn, 50000, MIB)},
    {EIGHT("threads-address", "8 threads, freed by address", draw_pairs, 50000, 4 * KIB),
     .mode = CLIFFS_ADDRESS},
};
const size_t cliffs_works_n = sizeof cliffs_works / sizeof *cliffs_works;
