/* lines.h: the lines of a text file, plain or gzip'ed. */
#ifndef LINES_H
#define LINES_H

#include <stdio.h>
#include <sys/types.h>

typedef struct lines {
    const char *path;
    unsigned long number; /* of the line last returned, from 1 */
    FILE *file;
    pid_t gzip; /* the process that unpacks, or 0 */
    char *text;
    size_t room;
    int failed; /* a message has been printed */
} lines;

int lines_open(lines *, const char *path); /* 0, or -1 after a message on stderr */
char *lines_next(lines *);                 /* without its line end; NULL at the end or on failure */
int lines_close(lines *);                  /* 0 when all went well since lines_open, else -1 */

/* Prints "FILE:LINE: reason" once and lets lines_close fail; returns -1. */
__attribute__((format(printf, 2, 3))) int lines_error(lines *, const char *format, ...);

#endif
