/* user.h: a program's second translation unit. */
#ifndef USER_H
#define USER_H

#ifdef __cplusplus
extern "C"
#endif
    int
    user_runs(void); /* 1 when the arena it makes does what it should */

#endif
