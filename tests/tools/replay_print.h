/* replay_print.h: the figures of a replay, for people and for programs. */
#ifndef REPLAY_PRINT_H
#define REPLAY_PRINT_H

#include "replay_run.h"

void replay_print_json(FILE *, const char *path, const char *source, const replay_options *,
                       const replay_result *);
void replay_print_head(FILE *, const replay_options *);
/* For JSON or XML; ? stands for what is no UTF-8. */
void replay_print_text(FILE *, const char *, int xml);
void replay_print_row(FILE *, const char *path, const replay_options *, const replay_result *);

#endif
