/* The table of works. */
#include "bench.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

#define LONG BENCH_CLIFFS
#define BOTH (BENCH_CLIFFS | BENCH_QUICK)
#define ALONE .streams = 1, .threads = 1
#define RANDOM(number, name, mib, sets)                                                            \
    {.id = "random-" name "-" #mib, .words = "random sizes: " name ", largest " #mib " MiB",       \
     .draw = draw_random, .count = number, .most = mib * MIB, .live = 16000 * MIB, ALONE,          \
     .in = sets}
#define EIGHT(id_, words_, draw_, most_)                                                           \
    .id = id_, .words = words_, .draw = draw_, .count = 50000, .most = most_, .threads = 8
#define HOST_TOO .in = BOTH | BENCH_HOST, .needs = BENCH_BLOCKS
#define HOST(id_, words_, draw_, count_)                                                           \
    .id = id_, .words = words_, .draw = draw_, .count = count_, ALONE, .in = BENCH_HOST,           \
    .needs = BENCH_BLOCKS
#define RECORDED(id_, words_, traces_)                                                             \
    .id = id_, .words = words_, .draw = draw_traces, .count = (size_t)1 << 24, .traces = traces_,  \
    .threads = 1
#define MEMORY(trace, words_) /* the name of the second ends as make bench-memory looks for it */  \
    {RECORDED(trace, words_, trace), .streams = 1, .in = BENCH_MEMORY},                            \
    {RECORDED(trace "-4", words_ ", 4", trace), .streams = 4, .in = BENCH_MEMORY}

const bench_work bench_works[] = {
    RANDOM(1000, "1k", 1, LONG),        RANDOM(1000, "1k", 4, LONG),
    RANDOM(1000, "1k", 64, BOTH),       RANDOM(1000, "1k", 256, BOTH),
    RANDOM(1000, "1k", 1024, LONG),     RANDOM(1000, "1k", 4096, LONG),
    RANDOM(10000, "10k", 1, LONG),      RANDOM(10000, "10k", 4, BOTH),
    RANDOM(10000, "10k", 64, BOTH),     RANDOM(10000, "10k", 256, BOTH),
    RANDOM(10000, "10k", 1024, BOTH),   RANDOM(10000, "10k", 4096, BOTH),
    RANDOM(100000, "100k", 1, LONG),    RANDOM(100000, "100k", 4, LONG),
    RANDOM(100000, "100k", 64, LONG),   RANDOM(100000, "100k", 256, LONG),
    RANDOM(100000, "100k", 1024, LONG), RANDOM(100000, "100k", 4096, LONG),
    {.id = "trained", .words = "1,000 rounds of GPT-2, then 256 MiB", .draw = draw_random,
     .count = 10000, .most = 256 * MIB, .live = 16000 * MIB, ALONE, .rounds = 1000},
    {.id = "thrice", .words = "each size three times", .draw = draw_thrice, .count = 9000,
     .most = 256 * MIB, ALONE},
    {.id = "log-normal", .words = "log-normal, 512 B to 4 GiB", .draw = draw_log_normal,
     .count = 10000, .live = 8 * GIB, ALONE},
    {.id = "log-normal-90", .words = "log-normal, 90% of a limit", .draw = draw_log_normal,
     .count = 10000, .live = 8 * GIB, .limit = 8 * GIB / 9 * 10, ALONE},
    {.id = "growing", .words = "100 MiB that grow by 8 KiB", .draw = draw_growing, .count = 5000,
     .blocks = 1, .live = 100 * MIB, ALONE},
    {.id = "growing-64", .words = "64 buffers that grow by 8 KiB", .draw = draw_growing,
     .count = 12800, .blocks = 64, .live = 6400 * MIB, ALONE},
    {.id = "drift", .words = "2 MiB larger each round", .draw = draw_drift, .count = 1920, ALONE},
    {.id = "server", .words = "a server, 64 requests", .draw = draw_server, .count = 20000,
     .most = 4 * MIB, ALONE},
    {.id = "phases", .words = "phases, other sizes each", .draw = draw_phases, .count = 10240,
     .most = 256 * MIB, ALONE},
    {RECORDED("sync", "GPT-2 without streams", "gpt2var"), .streams = 1, .mode = BENCH_READY},
    {RECORDED("cudafree", "GPT-2 by cudaMalloc, cudaFree", "gpt2var"), .streams = 1,
     .mode = BENCH_AS_CUDA, .in = LONG},
    {.id = "cudafree-loop", .words = "cudaMalloc, kernel, cudaFree", .draw = draw_loop,
     .count = 2000, .most = 16 * MIB, ALONE, .mode = BENCH_AS_CUDA},
    {RECORDED("streams-4", "GPT-2 spread over 4 streams", "gpt2var"), .streams = 4},
    {RECORDED("beside-2", "2 programs side by side", "resnet50 gnn"), .streams = 2},
    {RECORDED("beside-4", "4 programs side by side", "resnet50 gnn convnext frcnn"), .streams = 4},
    {.id = "handed", .words = "allocated on A, freed on B", .draw = draw_handed,
     .count = 20000, .most = 4 * MIB, .streams = 2, .threads = 1},
    {EIGHT("threads-own", "8 threads, 8 streams, 4 KiB", draw_pairs, 4 * KIB), HOST_TOO},
    {EIGHT("threads-one", "8 threads, one stream, 4 KiB", draw_pairs, 4 * KIB), HOST_TOO,
     .shared = 1},
    {EIGHT("threads-churn", "8 threads churn to 1 MiB", draw_churn, MIB), HOST_TOO,
     .blocks = 2048},
    {EIGHT("threads-address", "8 threads, freed by address", draw_pairs, 4 * KIB),
     .mode = BENCH_ADDRESS},
    {HOST("pair", "4 KiB and its free", draw_pairs, 50000), .most = 4 * KIB},
    {HOST("churn-16k", "churn, 16,384 live, to 64 KiB", draw_churn, 131072), .blocks = 16384,
     .most = 64 * KIB},
    {.id = "churn-large", .words = "churn, 4,096 live, to 64 MiB", .draw = draw_churn,
     .count = 131072, .blocks = 4096, .most = 64 * MIB, ALONE, .in = BENCH_HOST},
    {.id = "hand-over", .words = "2 MiB, all there is, on A and on B", .draw = draw_whole,
     .count = 20000, .most = 2 * MIB, .limit = 2 * MIB, .streams = 2, .threads = 1,
     .in = BENCH_HOST, .needs = BENCH_HAND_OVER},
    MEMORY("gpt2var", "GPT-2 training, varying lengths"),
    MEMORY("frcnn", "Faster R-CNN training"),
    MEMORY("resnet50", "ResNet-50, mixed precision"),
    MEMORY("llamagen", "Llama, growing KV cache"),
    MEMORY("gnn", "a graph network"),
    MEMORY("convnext", "ConvNeXt, checkpointing"),
};
const size_t bench_works_n = sizeof bench_works / sizeof *bench_works;
