/* The same memory goes from blocks at home to a stitched block and back, by gpupool_free, between
   streams whose work is still queued: each holder must find every word as the holder before left it
   at another address, and no earlier work may still be at it (invariant S2; CUDA's rule for memory
   with two addresses). */
#include "kit.h"

static const size_t CHUNKS = 5, WORDS = CHUNKS * KIT_CHUNK / sizeof(word);
static const std::vector<size_t> HOME(CHUNKS, KIT_CHUNK), WHOLE(1, CHUNKS *KIT_CHUNK);

static kit_arena arena;
static word holder; /* the latest one's number; 0 wrote all words at the beginning */

static __global__ void take_over(kit_holding mine, word before, word me) {
    kit_take_over(mine, before, me);
}

static kit_holding hold(const std::vector<size_t> &sizes, cudaStream_t stream) {
    kit_holding mine = kit_hold(arena.pool, sizes, stream);
    if (kit_bad) return mine;
    take_over<<<128, 256, 0, stream>>>(mine, holder, holder + 1);
    CUDA(cudaGetLastError());
    holder++;
    return mine;
}

static void let_go(const kit_holding &mine, cudaStream_t stream) {
    kit_let_go(arena.pool, mine, stream);
}

static void begin() {
    gpupool_arena_config config = {};
    arena = kit_open(config, CHUNKS);
    kit_holding first = kit_hold(arena.pool, WHOLE, arena.stream);
    kit_stamp(first.at[0], CHUNKS * KIT_CHUNK, 0, arena.stream);
    let_go(first, arena.stream);
    holder = 0;
    kit_wrong_words();
    kit_places();
}

/* holders since the beginning have found each place once. */
static void end() {
    gpupool_stats stats = kit_stats(arena.pool);
    CHECK(kit_wrong_words() == 0);
    CHECK(kit_places() == holder * (WORDS * (WORDS - 1) / 2));
    printf("%llu holders; %llu stitches made, %llu reused; %llu waits on the device, %llu on the "
           "host\n",
           holder, KIT_STITCHES(stats), KIT_STREAM_WAITS(stats), KIT_HOST_WAITS(stats));
    kit_close(arena);
}

static void on_one_stream() {
    begin();
    for (int round = 0; round < 200 && !kit_bad; round++) {
        let_go(hold(HOME, arena.stream), arena.stream);
        let_go(hold(WHOLE, arena.stream), arena.stream);
    }
    end();
}

static void between_two_streams() {
    begin();
    cudaStream_t other = kit_stream();
    for (int round = 0; round < 200 && !kit_bad; round++) {
        kit_linger(round % 2 ? other : arena.stream, 500000);
        let_go(hold(HOME, arena.stream), arena.stream);
        let_go(hold(WHOLE, other), other);
    }
    CHECK(KIT_STREAM_WAITS(kit_stats(arena.pool)) > 0);
    end();
    CUDA(cudaStreamDestroy(other));
}

/* What the reader of a holder's memory says to gpupool_record_stream comes before the next
   holder. */
static void with_a_reader() {
    begin();
    cudaStream_t other = kit_stream(), reader = kit_stream();
    for (int round = 0; round < 200 && !kit_bad; round++) {
        const cudaStream_t stream = round % 2 ? other : arena.stream;
        kit_holding mine = hold(round % 2 ? WHOLE : HOME, stream);
        kit_order(stream, reader);
        kit_linger(reader, 200000);
        for (word piece = 0, place = 0; piece < mine.count; place += mine.words[piece++]) {
            kit_verify(mine.at[piece], mine.words[piece] * sizeof(word), holder << 32 | place,
                       reader);
            POOL(gpupool_record_stream(arena.pool, mine.at[piece], reader));
        }
        let_go(mine, stream);
    }
    end();
    CUDA(cudaStreamDestroy(other));
    CUDA(cudaStreamDestroy(reader));
}

/* Each chunk has several stitches over it at a time, of other sizes. */
static void at_many_addresses() {
    begin();
    cudaStream_t other = kit_stream();
    const std::vector<size_t> sizes[] = {HOME,
                                         WHOLE,
                                         {3 * KIT_CHUNK, 2 * KIT_CHUNK},
                                         {KIT_CHUNK, 4 * KIT_CHUNK},
                                         {4 * KIT_CHUNK, KIT_CHUNK}};
    for (int round = 0; round < 400 && !kit_bad; round++) {
        const cudaStream_t stream = round / 3 % 2 ? other : arena.stream;
        let_go(hold(sizes[round * 7 / 3 % 5], stream), stream);
    }
    end();
    CUDA(cudaStreamDestroy(other));
}

int main() {
    RUN(on_one_stream);
    RUN(between_two_streams);
    RUN(with_a_reader);
    RUN(at_many_addresses);
    return kit_end();
}
