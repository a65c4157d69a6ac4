/* user.h: what the two files of the compile test tell each other. */
#ifndef USER_H
#define USER_H

#include "gpupool.h"

#ifdef __cplusplus
extern "C" {
#endif
int use_blocks(gpupool_arena *arena); /* 0: all calls went well */
#ifdef __cplusplus
}
#endif
#endif
