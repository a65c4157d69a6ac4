/* All of gpupool in one file of a program, and seen by no other. */
#define GPUPOOL_API static
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"

int main(void) {
    return !gpupool_result_name(GPUPOOL_OK);
}
