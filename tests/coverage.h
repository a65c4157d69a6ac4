/* coverage.h: comes first in every program that coverage.sh builds. A child process that ends by
   _exit leaves its counts behind too. */
#ifndef COVERAGE_H
#define COVERAGE_H

#define _GNU_SOURCE 1
#include <unistd.h>

void __gcov_dump(void);
#define _exit(status) (__gcov_dump(), _exit(status))

#endif
