/* As library.c, its CUDA calls counted where fakecuda does not. */
#include "machine.h"

#if GPUPOOL_TEST_GPU
#include "counted_cuda.h"
#endif

#include "library.c"
