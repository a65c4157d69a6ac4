#!/bin/bash
# Plants one wrong edit at a time in a copy of the header: in default arenas, cudaMalloc's shape,
# limits as text and GPUPOOL_STREAM_CHECK. A test of these must notice. Closes with `N passed, N
# failed`.
set -u
cd "$(dirname "$0")/../.."
out=${BUILD:-build}/shape_planted options=-DGPUPOOL_STREAM_CHECK=1
tests="test_shape test_default_arena test_limit_text test_stream_check"
. tests/next/planted_kit.sh

plant "O9 as much as is needed" 's/(ask->owner->kind == GPI_NONE && units >= ask->units)/0/'
plant "O9 a share of what is reserved" 's/return units >= arena->chunks.reserved.now \/ 16.*||/return/'
plant "O9 NO_WAIT" \
    '/gpi_ladder_wants_freed/,/^}/s/ || ask->request->flags & GPUPOOL_NO_WAIT//'
plant "O9 a scope" '/gpi_ladder_wants_freed/,/^}/s/ || ask->owner->kind == GPI_GRAPH//'
plant "SP1 cudaFree has a stream" 's/gpi_shape_free(block, GPI_ALL_STREAM, /gpi_shape_free(block, cudaStreamLegacy, /'
plant "SP2 other arenas" '/gpi_shape_free_in/,/^}/s/if (!arena->default_at)/if (0)/'
plant "SP2 chunks of chunk_alloc" 's/ && arena->config.source != GPUPOOL_SOURCE_CUSTOM)$/)/'
plant "SP3 in relaxed mode" '/gpi_shape_fail/,/^}/s/cudaThreadExchangeStreamCaptureMode(&mode);//'
plant "SP3 an error that stays" 's/ || error != cudaErrorMemoryAllocation) return error;/) return error;/'
plant "a scope's capture" 's/return !has_scope;/return 1;/'
plant "the stream's device" '/gpi_shape_arena_of/,/^}/s/if (context == driver->context)/if (1)/'
plant "destroyed, and still the default" 's/if (arena->default_at && .*/if (0)/'
plant "a reset of another device" 's/ || arena->config.device != device ||/ ||/'
plant "a reset forgets pinned memory" 's/at = gpi_process.defaults, \*arena;/at = gpi_process.defaults + 1, *arena;/'
plant "two default arenas" '/gpupool_get_default_arena/,/^}/s/if (first) gpi_life_end(arena);//'
plant "a device that is none" '/gpupool_get_default_arena/,/^}/s/device < 0 || //'
plant "a limit for pinned memory" \
    '/gpi_life_choose_limit/,/^}/s/ && arena->config.source != GPUPOOL_SOURCE_PINNED//'
plant "a negative limit" '/gpi_life_read_limit/,/^}/s/ && \*bytes > (uint64_t)1 << 46)/ \&\& 0)/'
plant "a fraction of a byte" 's/(is_rest || !is_whole)/is_rest/'
plant "no limit by -1" 's/(is_rest || !is_whole)/!is_whole/'
plant "larger than any number" 's/if (!(number < 9e18)) return.*//'
plant "not rounded" 's/+ 0.5; \/\* tenths/+ 0; \/* tenths/'
plant "words in one case" '/gpi_text_is/,/^}/s/(\*text | 32)/*text/'
plant "ids are not asked" '/gpi_stream_id/,/^}/s/!GPUPOOL_STREAM_CHECK/1/'
plant "captures are asked" \
    '/^static inline uint64_t gpi_stream_id/,/^}/s/gpi_driver_is_capturing(driver, stream)/0/'
plant "the old id stays" '/gpi_stream_check/,/^}/s/gpi_stream_retire(arena, s);/;/'
planted_end
