/* zlib's headers are on few machines, the gzip program on all: packed files come through a pipe. */
#define _POSIX_C_SOURCE 200809L
#include "lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NO_PROGRAM 127 /* the exit status of a child that could not become gzip */

int lines_error(lines *l, const char *format, ...) {
    if (l->failed) return -1;
    l->failed = 1;
    va_list args;
    va_start(args, format);
    if (l->number) fprintf(stderr, "%s:%lu: ", l->path, l->number);
    else fprintf(stderr, "%s: ", l->path);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    return -1;
}

static int failed_file(lines *l, const char *reason) {
    l->number = 0; /* the file is at fault, not a line of it */
    return lines_error(l, "%s", reason);
}

static void become_gzip(int packed, const int pipe_ends[2]) {
    dup2(packed, STDIN_FILENO);
    dup2(pipe_ends[1], STDOUT_FILENO);
    int null = open("/dev/null", O_WRONLY);
    if (null >= 0) dup2(null, STDERR_FILENO); /* lines_close says what gzip would */
    close(packed);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    execlp("gzip", "gzip", "-dc", (char *)NULL);
    _exit(NO_PROGRAM);
}

/* The read end of a pipe that carries the unpacked text, or -1. */
static int start_gzip(lines *l, int packed) {
    int ends[2];
    if (pipe(ends) != 0) return failed_file(l, strerror(errno));
    l->gzip = fork();
    if (l->gzip == 0) become_gzip(packed, ends);
    close(ends[1]);
    if (l->gzip > 0) return ends[0];
    close(ends[0]);
    l->gzip = 0;
    return failed_file(l, "cannot start gzip");
}

/* By the first two bytes, not by the name: 1 packed, 0 plain, -1 failed. */
static int is_packed(lines *l, int fd) {
    unsigned char magic[2] = {0, 0};
    ssize_t got = read(fd, magic, sizeof magic);
    if (got < 0) return failed_file(l, strerror(errno));
    if (lseek(fd, 0, SEEK_SET) != 0) return failed_file(l, "not a file that can be read twice");
    if (got == 2 && magic[0] == 0x1f && magic[1] == 0x8b) return 1;
    size_t length = strlen(l->path);
    if (length > 3 && strcmp(l->path + length - 3, ".gz") == 0)
        return failed_file(l, "named .gz, but it does not hold gzip data");
    return 0;
}

int lines_open(lines *l, const char *path) {
    memset(l, 0, sizeof *l);
    l->path = path;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return failed_file(l, strerror(errno));
    int packed = is_packed(l, fd);
    int text = packed == 1 ? start_gzip(l, fd) : fd;
    if (text != fd) close(fd);
    if (packed >= 0 && text >= 0) l->file = fdopen(text, "r");
    if (l->file) return 0;
    if (packed < 0) close(fd);
    return failed_file(l, "cannot be read");
}

/* Closes the file; a gzip that stopped early is an error of its own. Safe to call again. */
static int finish(lines *l) {
    if (l->file) fclose(l->file);
    l->file = NULL;
    int status = 0;
    if (!l->gzip) return l->failed ? -1 : 0;
    while (waitpid(l->gzip, &status, 0) < 0 && errno == EINTR) continue;
    l->gzip = 0;
    if (l->failed) return -1; /* gzip may have been cut off by this side */
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_PROGRAM)
        return failed_file(l, "needs the gzip program, which cannot be run");
    return failed_file(l, "gzip cannot unpack it: truncated or damaged");
}

char *lines_next(lines *l) {
    if (!l->file || l->failed) return NULL;
    ssize_t n = getline(&l->text, &l->room, l->file);
    if (n < 0) {
        if (ferror(l->file)) failed_file(l, strerror(errno));
        return NULL;
    }
    l->number++;
    if (memchr(l->text, 0, (size_t)n)) {
        lines_error(l, "holds a zero byte: this is no text");
        return NULL;
    }
    int whole = l->text[n - 1] == '\n';
    if (!whole && finish(l) != 0) return NULL; /* half a line: blame the file before the line */
    while (n > 0 && (l->text[n - 1] == '\n' || l->text[n - 1] == '\r')) l->text[--n] = 0;
    return l->text;
}

int lines_close(lines *l) {
    int result = finish(l);
    free(l->text);
    l->text = NULL;
    return result;
}
