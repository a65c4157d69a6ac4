/* The implementation in a translation unit of its own, so that a measured call is a real call. */
#define GPUPOOL_IMPLEMENTATION
#ifdef GPUPOOL_NEXT
#include "../next/gpupool.h"
#else
#include "../../gpupool.h"
#endif
