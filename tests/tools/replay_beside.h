/* replay_beside.h: several traces as one that has them side by side. */
#ifndef REPLAY_BESIDE_H
#define REPLAY_BESIDE_H

#include "trace.h"

/* One event of each trace in turn, until the longest has ended; each trace on a stream of its own,
   whatever its own streams were. 0, or -1 after a message on stderr. */
int replay_beside(trace *out, const trace *of, size_t traces);

#endif
