/* linked.c: the implementation as the tests of tests/api link it, one object for each set of
   macros. Its host memory counts itself and fails on demand (fail_malloc.h).
*/
#define LINKED_LIBRARY 1
#include "fail_malloc.h"
#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
