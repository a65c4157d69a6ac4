#!/bin/bash
# What static analysis finds in gpupool.h: nothing, or the gate fails. Each tool must also find a
# mistake planted in a header. Closes with `N passed, N failed`; a tool that is missing is left out.
# QUICK=1: those alone that take seconds.
set -u
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build} JOBS=${JOBS:-2}
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
one() { # NAME COMMAND...: leaves "passed failed" in $out/sum
    local planted=$out/../planted.c
    passed=0 failed=0
    check "$1 finds a planted mistake" finds_the_planted "${@:2}" "$planted"
    check "$1" is_silent "${@:2}" "$unit"
    echo "$passed $failed" > "$out/sum"
}

# JOBS tools at a time, each in a folder of its own.
started=0 running=0
analyze() { # NAME COMMAND...: the mistake is found, and none in the header
    if ! command -v "$2" > /dev/null; then left_out "$1: $2"; return; fi
    if ((running >= JOBS)); then wait -n; else running=$((running + 1)); fi
    started=$((started + 1))
    mkdir "$out/$started"
    (out=$out/$started; one "$@") > "$out/$started.told" 2>&1 &
}

# ---- clang's warnings, all but those that speak against what the header is meant to be ----
every=(
    -Wno-unknown-warning-option      # the newer of these
    -Wno-padded                      # the order of members is chosen for reading and for speed
    -Wno-covered-switch-default      # an enum that comes from a caller or from CUDA may be anything
    -Wno-switch-default              # the opposite of the one above
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
    --suppress=constParameter            # of a cudaStream_t, which is CUDA's type as it is
    --suppress=knownConditionTrueFalse   # options are constants, so that code is compiled in all
    --suppress=duplicateCondition        # two statements of one condition read better than braces
    --suppress=ctuuninitvar              # takes a struct filled member by member for an empty one
    --suppress=nullPointerRedundantCheck # of `a ? a : b` it takes only a to be asked; clang and gcc
    --suppress=ctunullpointer            # follow the same paths, and know better
    --suppress=uninitStructMember
    --suppress=redundantContinue         # a loop without a body says so
    --suppress=varFuncNullUB             # a pointer is what the system call takes
    --suppress=wrongPrintfScanfArgNum    # of a format that is a variable it reads one value
    --suppress=unreadVariable            # of what has a cleanup
)
analyze "cppcheck" cppcheck --quiet --std=c11 --enable=warning,performance,portability,style \
    --error-exitcode=1 "${suppressed[@]}" -Itests/fakecuda/include -DGPUPOOL_IMPLEMENTATION \
    -U__cplusplus

# ---- what follows every path takes minutes: QUICK=1 leaves it out. clang --analyze does not see
# that what a function sets is set whenever it returns OK, and finds nothing else ----
# With gcc's own bound on the states of a basic block (5) the header takes over ten minutes.
bound=--param=analyzer-bb-explosion-factor=2
if [[ -z ${QUICK:-} ]]; then
    analyze "gcc -fanalyzer" gcc -fanalyzer $bound -std=c11 $fake -c -o "$out/unit.o"
    analyze "gcc -fanalyzer, more code" \
        gcc -fanalyzer $bound -std=c11 $fake $more -c -o "$out/more.o"
fi

wait
passed=0 failed=0
for ((i = 1; i <= started; i++)); do
    cat "$out/$i.told"
    read -r p f < "$out/$i/sum" || p=0 f=1
    passed=$((passed + p)) failed=$((failed + f))
done
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
