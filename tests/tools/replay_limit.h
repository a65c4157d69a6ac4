/* replay_limit.h: the smallest limit under which a trace completes in a fresh arena. */
#ifndef REPLAY_LIMIT_H
#define REPLAY_LIMIT_H

#include "replay_plan.h"

#define REPLAY_LIMIT_STEP ((uint64_t)2 << 20)

/* Of so many passes, the first of them cold. To 2 MiB; 0 bytes when not even eight times what is
   live is enough. 0, or -1 on failure, after a message on stderr. The config's own limit does not
   count. */
int replay_min_limit(const replay_plan *, const gpupool_arena_config *, unsigned passes,
                     uint64_t *bytes);

#endif
