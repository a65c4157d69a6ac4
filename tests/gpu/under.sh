#!/bin/bash
# One test program under a tool of compute-sanitizer: TOOL=memcheck under.sh PROGRAM
#
# Calls that CUDA is meant to refuse are no findings, so memcheck does not tell of them. What is not
# freed at the end is one, but where the source says that it is `// left at exit:`. A test that is
# for fakecuda makes no CUDA call here, of which there is nothing to say.
set -u
options=(--tool "$TOOL" --error-exitcode 99 --target-processes all)
if [[ $TOOL == memcheck ]]; then
    options+=(--report-api-errors no)
    grep -qs '^// left at exit:' tests/{unit,api}/"$(basename "$1").c" ||
        options+=(--leak-check full)
fi

out=$(compute-sanitizer "${options[@]}" "$1" 2>&1)
status=$?
printf '%s\n' "$out"
case $status:$out in
    *'terminated before first instrumented API call'*) echo "0 passed, 0 failed, 1 skipped" ;;
    0:*'SUMMARY: 0 '*) echo "1 passed, 0 failed" ;;
    *) echo "0 passed, 1 failed"; exit 1 ;;
esac
