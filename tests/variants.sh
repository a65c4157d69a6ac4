#!/bin/sh
# Prints make rules for the test programs: variants.sh BUILD SOURCE...
#
# A source says in `// build: NAME FLAGS...` lines which programs to make of it; without any it is
# built once, plainly. A program and the simulated CUDA under it have the same sanitizers; what a
# sanitizer reports ends it. It is not optimized unless it asks for that: most run for less time
# than that takes. `// and: SOURCE...` names sources that it is linked with.
#
# A source of tests/unit includes the implementation, as static functions: those that it does not
# call take no time to compile. Of the sanitizers it has AddressSanitizer alone: the other takes as
# long to compile again, and is in the object that tests/api shares. One of tests/api is linked with
# the implementation: all that have the same sanitizers, macros of gpupool's and optimization share
# one object of linked.c. Those of tests/next are the same for tests/next/gpupool.h: their programs'
# names begin with next_.
#
# MODE=thread, or address,undefined: each program that has no sanitizers of its own gets these.
# ON=gpu: one program a source, of its first line, without sanitizers, for the real CUDA.
#
# COVERAGE=1: those without sanitizers have gcov's counters (COUNTERS), and no assertions, which are
# to have one outcome; but for those that are long and add nothing to what others take, or check
# every invariant around every call. A set of macros that is built with sanitizers only is built
# with counters, too. Of static functions gcc leaves out those that are declared inline and not
# called: tests.mk makes a header that declares all so. Nothing is inlined, or its branches would be
# counted at every call apart.
set -eu
build=$1
shift
uncounted=$(printf '%s\n' test_churn test_counted test_fuzz test_races test_schedules \
    test_schedules_mapped test_schedules_ring test_soak test_threads16 test_tree-plain \
    test_tree_long test_tree_misuse test_sabotage-plain)
on_gpu= GPU=
[ "${ON:-}" != gpu ] || on_gpu=gpu- GPU=GPU_

# clang takes half as long as gcc to build a sanitized program, or one that is not optimized. Its
# runtimes are a package of their own: only an attempt tells that they are there.
if echo 'int main(void) { return 0; }' | \
    clang -fsanitize=address,undefined -x c -o "$build/sanitized" - 2> /dev/null; then
    echo "QUICK_CC := clang"
fi

linked() { # FLAGS: the object to link, and its rule in $linked_rule
    counters=
    case $1 in *COUNTERS*) counters=' $(COUNTERS)' ;; esac
    level=$optimize # under ThreadSanitizer it runs for longer than optimizing takes
    [ "$sanitizers" != thread ] || level=O1
    name=$level${counters:+-counted}${sanitizers:+-$(echo "$sanitizers" | tr , -)} macros=
    for flag in $1; do
        case $flag in
        -Itests/next) macros="$macros $flag" ;;
        -DGPUPOOL_* | -DCUDA_API_*)
            macros="$macros $flag"
            name=$name-$(echo "$flag" | sed 's/^-D//; s/^GPUPOOL_//; s/=1$//; s/=/_/')
        esac
    done
    object=$build/${on_gpu}linked/$name.o
    checks="-fsanitize=$sanitizers -fno-sanitize-recover=all"
    linked_rule="${GPU}LINKED += $object
$object: FLAGS := -$level$macros$counters${sanitizers:+ $checks}"
}

is_counted() { # PROGRAM FLAGS
    case $1 in next_*) return 1 ;; esac # another header
    ! echo "$uncounted" | grep -qx -e "$1" -e "${1%-*}" || return 1
    case $2 in *-fsanitize* | *-DGPUPOOL_CHECK=[23]*) return 1 ;; esac
}

defines() { # FLAGS: the macros alone
    echo "$1" | tr ' ' '\n' | grep '^-D' | tr '\n' ' '
}

macros_of() { # FLAGS: those of gpupool's that change its code
    echo "$1" | tr ' ' '\n' | grep '^-D\(GPUPOOL\|CUDA_API\)_' | grep -v GPUPOOL_CHECK= | sort |
        tr '\n' ' '
}

rule() { # PROGRAM SOURCE FLAGS
    flags=$3 counted=
    case $2 in tests/next/*) flags="-Itests/next -DGPUPOOL_NEXT=1 $flags" ;; esac
    sanitizers=$(echo "$flags" | sed -n 's/.*-fsanitize=\([a-z,]*\).*/\1/p')
    if [ "$on_gpu" ]; then
        sanitizers=
        flags="-O1 $(defines "$flags")"
    elif [ "${MODE:-}" ]; then
        [ -z "$sanitizers" ] || return 0
        sanitizers=$MODE
        flags="$flags -fsanitize=$MODE"
    elif [ "${COVERAGE:-}" ] && is_counted "$1" "$flags"; then
        counted=tests/gates/coverage_exit.c
        flags="-O0 $(echo "$flags" | sed 's/-O[0-9]//') -DGPUPOOL_CHECK=0 \$(COUNTERS)"
    fi
    [ -z "$sanitizers" ] || flags="$flags -fno-sanitize-recover=all"
    optimize=$(echo "$flags" | sed -n 's/.*-\(O[0-9]\).*/\1/p')
    [ "$optimize" ] || flags="-O0 $flags" optimize=O0
    target=$build/${on_gpu}test/$1 object=
    case $2 in
    tests/api/* | tests/next/api/*)
        linked "$flags"
        flags="-DLINKED=1 $flags"
        echo "$linked_rule" ;;
    tests/unit/*) flags="-DGPUPOOL_STATIC=1 $flags" ;;
    esac
    echo "${GPU}TESTS += $target"
    [ -z "$counted" ] || echo "COUNTED += $target"
    [ "$on_gpu" ] || object="$object $build/fakecuda/${sanitizers:-none}.a"
    # the source last: what it includes is what the compiler writes down for make
    echo "$target: $also $counted $2 $object"
    echo "$target: FLAGS := $flags"
}

for source in "$@"; do
    program=$(basename "$source" .c)
    also=$(sed -n 's,^// and: *,,p' "$source" | tr '\n' ' ')
    case $source in
    */fakecuda/*) program=fakecuda_$program ;;
    */next/*) program=next_$program ;;
    esac
    if ! grep -q '^// build: ' "$source"; then
        rule "$program" "$source" ""
        continue
    fi
    builds=$(sed -n 's,^// build: *,,p' "$source")
    counted_macros=
    while read -r name flags; do
        macros_of_it=$(macros_of "$flags")
        if [ "$on_gpu" ]; then rule "$program" "$source" "$flags"; break; fi
        rule "$program-$name" "$source" "$flags"
        [ -z "$counted" ] || counted_macros="$counted_macros;$macros_of_it;"
    done << END
$builds
END
    [ "${COVERAGE:-}" ] || continue
    while read -r name flags; do
        macros_of_it=$(macros_of "$flags")
        case $counted_macros in *";$macros_of_it;"*) continue ;; esac
        is_counted "$program-$name" "$(defines "$flags")" || continue
        counted_macros="$counted_macros;$macros_of_it;"
        rule "$program-$name-counted" "$source" "$(defines "$flags")"
    done << END
$builds
END
done
