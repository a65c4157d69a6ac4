#!/bin/bash
# What static analysis finds in gpupool.h: nothing, or the gate fails. Each tool must also find a
# mistake planted in a header. Closes with `N passed, N failed`; a tool that is missing is left out.
set -u
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
out=$BUILD/analyze
rm -rf "$out"
mkdir -p "$out"
. tests/gates/checks.sh

unit=tests/support/library.c
fake="-isystem tests/fakecuda/include"
more="-DGPUPOOL_STREAM_CHECK=1 -DGPUPOOL_CHECK=1" # what the usual build leaves out

# One mistake for every tool: a value cut short, an index too far, memory used after it is freed.
cat > "$out/planted.h" << 'END'
#include <stdlib.h>
static int planted(long number) {
    int kept[2] = {0, number};
    int *memory = (int *)malloc(sizeof *memory);
    if (!memory) return kept[2];
    free(memory);
    return *memory;
}
END
printf '#include "planted.h"\nint main(void) { return planted(1); }\n' > "$out/planted.c"

is_silent() { # COMMAND...
    local said status=0
    said=$("$@" 2>&1) || status=$?
    ((status == 0)) && [[ -z $said ]] && return
    echo "$said" # nothing, if the tool was killed: the status tells
    echo "status $status"
    return 1
}
finds_the_planted() { "$@" 2>&1 | grep '\<planted\.h:[0-9]' > /dev/null; }
analyze() { # NAME COMMAND...: the mistake is found, and none in the header
    if ! command -v "$2" > /dev/null; then left_out "$1: $2"; return; fi
    check "$1 finds a planted mistake" finds_the_planted "${@:2}" "$out/planted.c"
    check "$1" is_silent "${@:2}" "$unit"
}

# ---- clang's warnings, all but those that speak against what the header is meant to be ----
every=(
    -Wno-unknown-warning-option      # the newer of these
    -Wno-padded                      # the order of members is chosen for reading and for speed
    -Wno-switch-default              # an enum's values are all there
    -Wno-unsafe-buffer-usage         # it is C: pointers are counted on
    -Wno-declaration-after-statement -Wno-pre-c11-compat -Wno-pre-c23-compat
    -Wno-conditional-uninitialized   # of what a function sets whenever it returns OK
    -Wno-used-but-marked-unused      # a variable whose cleanup is what it is for
    -Wno-format-nonliteral           # a verdict's sentence is chosen from several
    -Wno-bad-function-cast           # an address that comes as a number
)
every_cxx=(
    -Wno-c++98-compat-pedantic -Wno-c++98-compat
    -Wno-old-style-cast -Wno-zero-as-null-pointer-constant # C++ is one of two languages here
    -Wno-weak-vtables                # a header alone has no file for gpupool::bad_alloc's
)
analyze "clang -Weverything, C11" clang -Weverything "${every[@]}" -std=c11 $fake -fsyntax-only
analyze "clang -Weverything, C11, more code" \
    clang -Weverything "${every[@]}" -std=c11 $fake $more -fsyntax-only
analyze "clang -Weverything, C++11" clang++ -x c++ -Weverything "${every[@]}" "${every_cxx[@]}" \
    -std=c++11 $fake -fsyntax-only

# ---- cppcheck ----
suppressed=(
    --suppress=variableScope             # declarations stand where a function begins
    --suppress=duplicateCondition        # two statements of one condition read better than braces
    --suppress=uninitStructMember
    --suppress=redundantContinue         # a loop without a body says so
    --suppress=varFuncNullUB             # a pointer is what the system call takes
    --suppress=wrongPrintfScanfArgNum    # of a format that is a variable it reads one value
    --suppress=unreadVariable            # of what has a cleanup
)
analyze "cppcheck" cppcheck --quiet --std=c11 --enable=warning,performance,portability,style \
    --error-exitcode=1 "${suppressed[@]}" -Itests/fakecuda/include -DGPUPOOL_IMPLEMENTATION \
    -U__cplusplus

echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
