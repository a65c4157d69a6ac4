#!/bin/sh
# Prints make rules for the test programs: variants.sh BUILD SOURCE...
#
# A source says in `// build: NAME FLAGS...` lines which programs to make of it; without any it is
# built once, plainly. A program and the simulated CUDA under it have the same sanitizers.
# It is not optimized unless it asks for that: most run for less time than that takes. What a
# sanitizer reports ends it.
# `// and: SOURCE...` names sources that it is linked with. MODE=thread, or address,undefined: each
# program that has no sanitizers of its own gets these.
set -eu
build=$1
shift

# clang takes half as long as gcc to build a sanitized program, or one that is not optimized. Its
# runtimes are a package of their own: only an attempt tells that they are there.
if echo 'int main(void) { return 0; }' | \
    clang -fsanitize=address,undefined -x c -o "$build/sanitized" - 2> /dev/null; then
    echo "QUICK_CC := clang"
fi

rule() { # PROGRAM SOURCE FLAGS
    flags=$3
    sanitizers=$(printf '%s\n' "$flags" | sed -n 's/.*-fsanitize=\([a-z,]*\).*/\1/p')
    if [ "${MODE:-}" ]; then
        [ -z "$sanitizers" ] || return 0
        sanitizers=$MODE
        flags="$flags -fsanitize=$MODE"
    fi
    [ -z "$sanitizers" ] || flags="$flags -fno-sanitize-recover=all"
    case $flags in
        *-O*) ;;
        *) flags="-O0 $flags" ;;
    esac
    echo "TESTS += $build/test/$1"
    # the source last: what it includes is what the compiler writes down for make
    echo "$build/test/$1: $also $2 $build/fakecuda/${sanitizers:-none}.a"
    echo "$build/test/$1: FLAGS := $flags"
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
