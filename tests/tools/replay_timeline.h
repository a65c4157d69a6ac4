/* replay_timeline.h: a trace's memory over its events, as a picture. */
#ifndef REPLAY_TIMELINE_H
#define REPLAY_TIMELINE_H

#include "replay_plan.h"

/* One cold pass through a fresh arena: live, reserved and the limit. 0, or -1 after a message on
   stderr. */
int replay_timeline(const replay_plan *, const gpupool_arena_config *, const char *name,
                    const char *path);

#endif
