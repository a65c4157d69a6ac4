/* The implementation in a translation unit of its own, so that a measured call is a real call. */
#define GPUPOOL_IMPLEMENTATION
#include "../../gpupool.h"
