/* The second file: functions over the same types. */
#include "names.h"

bool other_has(const blocks &some, const streams &one) { return some.block && one.stream; }
bool other_has_async(const async_blocks &some) { return some.block != nullptr; }
async_take other_async_take() { return cudaFreeAsync; }
