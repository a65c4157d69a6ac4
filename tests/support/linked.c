/* linked.c: the implementation as the tests of tests/api link it, one object for each set of
   macros. Its host memory counts itself and fails on demand (fail_malloc.h), and a test says how
   many processors it sees.
*/
#define LINKED_LIBRARY 1
#include "fail_malloc.h"

#include <unistd.h>

int linked_processors; /* that the implementation sees; 0: as many as there are */
static long see(int name) {
    return linked_processors && name == _SC_NPROCESSORS_ONLN ? linked_processors : sysconf(name);
}
#define sysconf see

#define GPUPOOL_IMPLEMENTATION
#include "gpupool.h"
