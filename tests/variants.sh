#!/bin/sh
# Prints make rules for the test programs: variants.sh BUILD SOURCE...
#
# A source says in `// build: NAME FLAGS...` lines which programs to make of it; without any it is
# built once, with AddressSanitizer and UndefinedBehaviorSanitizer. A program and the simulated CUDA
# under it have the same sanitizers; what a sanitizer reports ends it.
#
# A source of tests/unit includes the implementation. One of tests/api sees declarations alone, and
# is linked with the implementation: all that have the same sanitizers and macros of gpupool's share
# one object of linked.c.
#
# MODE=thread, or address,undefined: one program a source, of its first line, with these instead.
# ON=gpu: the same without sanitizers, for the real CUDA.
set -eu
build=$1
shift
on_gpu= GPU=
[ "${ON:-}" != gpu ] || on_gpu=gpu- GPU=GPU_

# clang takes half as long as gcc to build a sanitized program. Its runtimes are a package of their
# own: only an attempt tells that they are there.
if echo 'int main(void) { return 0; }' | \
    clang -fsanitize=address,undefined -x c -o "$build/sanitized" - 2> /dev/null; then
    echo "QUICK_CC := clang"
fi

rule() { # PROGRAM SOURCE FLAGS
    sanitizers=$(echo "$3" | sed -n 's/.*-fsanitize=\([a-z,]*\).*/\1/p')
    macros=$(echo "$3" | tr ' ' '\n' | grep '^-D\(GPUPOOL\|CUDA_API\)_' | tr '\n' ' ' || true)
    flags=$3
    if [ "$on_gpu" ]; then
        sanitizers= flags="-O1 $(echo "$3" | tr ' ' '\n' | grep '^-D' | tr '\n' ' ' || true)"
    elif [ "${MODE:-}" ]; then
        sanitizers=$MODE flags="$(echo "$3" | sed 's/-fsanitize=[a-z,]*//') -fsanitize=$MODE"
    fi
    [ -z "$sanitizers" ] || flags="$flags -fno-sanitize-recover=all"
    target=$build/${on_gpu}test/$1 object=
    case $2 in
    tests/api/*)
        # under ThreadSanitizer it runs for longer than optimizing takes
        level=-O0
        [ "$sanitizers" != thread ] || level=-O1
        name=$(echo "${sanitizers:-plain} $macros" | tr -c 'A-Za-z0-9_\n' -)
        object=$build/${on_gpu}linked/$name.o
        echo "${GPU}LINKED += $object"
        checks="-fsanitize=$sanitizers -fno-sanitize-recover=all"
        echo "$object: FLAGS := $level $macros${sanitizers:+$checks}"
        flags="-DLINKED=1 $flags" ;;
    esac
    echo "${GPU}TESTS += $target"
    [ "$on_gpu" ] || object="$object $build/fakecuda/${sanitizers:-none}.a"
    echo "$target: $2 $object"
    echo "$target: FLAGS := $flags"
}

for source in "$@"; do
    program=$(basename "$source" .c)
    case $source in */fakecuda/*) program=fakecuda_$program ;; esac # built plainly, too
    if ! grep -q '^// build: ' "$source"; then
        rule "$program" "$source" "-fsanitize=address,undefined"
        continue
    fi
    sed -n 's,^// build: *,,p' "$source" | while read -r name flags; do
        if [ "$on_gpu${MODE:-}" ]; then rule "$program" "$source" "$flags"; break; fi
        rule "$program-$name" "$source" "$flags"
    done
done
