/* The header may be included plainly first, by some other header, and implemented afterwards. */
#include "../../../gpupool.h"
#define GPUPOOL_IMPLEMENTATION
#include "../../../gpupool.h"
