#!/bin/sh
# Prints make rules for the test programs: variants.sh BUILD SOURCE...
#
# A source says in `// build: NAME FLAGS...` lines which programs to make of it; without any it is
# built once, plainly. A program and the simulated CUDA under it have the same sanitizers.
# `// and: SOURCE...` names sources that it is linked with.
set -eu
build=$1
shift

rule() { # PROGRAM SOURCE FLAGS
    sanitizers=$(printf '%s\n' "$3" | sed -n 's/.*-fsanitize=\([a-z,]*\).*/\1/p')
    echo "TESTS += $build/test/$1"
    echo "$build/test/$1: $2 $also $build/fakecuda/${sanitizers:-none}.a"
    echo "$build/test/$1: FLAGS := $3"
}

for source in "$@"; do
    program=$(basename "$source" .c)
    also=$(sed -n 's,^// and: *,,p' "$source")
    case $source in */fakecuda/*) program=fakecuda_$program ;; esac
    if ! grep -q '^// build: ' "$source"; then
        rule "$program" "$source" ""
        continue
    fi
    sed -n 's,^// build: *,,p' "$source" | while read -r name flags; do
        rule "$program-$name" "$source" "$flags"
    done
done
