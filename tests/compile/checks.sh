# checks.sh: the checks of matrix.sh, which sources it. $out, $fake and $units are matrix.sh's.
# Each check is a command; what it prints is shown when it fails.

passed=0 failed=0

check() { # NAME COMMAND...
    if "${@:2}" > "$out/said" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $1"
        echo "  ${*:2}" | tr -s ' \n' ' ' && echo
        head -n 30 "$out/said"
    fi
}

left_out() { # WHAT
    echo "left out: $1 (not on this machine)"
}

works() { # COMPILER
    case $1 in *++*) language=c++ ;; *) language=c ;; esac
    echo 'int main(void) { return 0; }' | $1 -x $language -o "$out/works" - 2> /dev/null
}

# Links with the simulated CUDA, and runs.
link_and_run() { # PROGRAM COMPILER OBJECT...
    $2 -pthread -o "$1" "${@:3}" "$BUILD/fakecuda/none.a" && "$1"
}

two_units() { # PROGRAM COMPILER FLAGS: of the sources in $units
    local objects=()
    for source in $units; do
        objects+=("$1-$(basename "$source").o")
        $2 $3 -c -o "${objects[-1]}" "$source" || return 1
    done
    link_and_run "$1" "$2" "${objects[@]}"
}

mixed() { # COMPILER STANDARD of the implementation, COMPILER STANDARD of its users
    $1 $(flags_for "$2") $fake -c -o "$out/mixed-library.o" $implementation || return 1
    for source in main user; do
        $3 $(flags_for "$4") $fake -c -o "$out/mixed-$source.o" tests/compile/$source.c || return 1
    done
    link_and_run "$out/mixed" "$CXX" "$out"/mixed-{library,main,user}.o
}

symbols() { # COMPILER FLAGS: "type name" of all that the implementation defines
    $1 $2 $fake -O0 -c -o "$out/symbols.o" $implementation &&
        nm -C --defined-only "$out/symbols.o" | sed -n 's/^[0-9a-f]* //p'
}

only_ours() { # COMPILER FLAGS
    local list others
    list=$(symbols "$1" "$2") || return 1
    others=$(echo "$list" | grep '^[A-Z] ' | grep -Ev '^[A-Z] gpupool_[A-Za-z0-9_]+$')
    [[ -z $others ]] || { printf 'exported:\n%s\n' "$others"; return 1; }
    # An empty list would pass the line above.
    grep -q "^T gpupool_alloc$" <<< "$list" || { echo "gpupool_alloc is hidden"; return 1; }
}

no_other_globals() { # COMPILER FLAGS
    local list others
    list=$(symbols "$1" "$2") || return 1
    others=$(echo "$list" | grep -i '^[bdcsg] ' |
        grep -Evf <(sed -n 's/^\([^#].*\)/^[a-zA-Z] \1$/p' tests/compile/globals.txt))
    [[ -z $others ]] || { printf 'writable globals:\n%s\n' "$others"; return 1; }
}

macros() { # COMPILER FLAGS SOURCE
    $1 $2 $fake -I. -dM -E "$3" | sed -n 's/^#define \([A-Za-z0-9_]*\).*/\1/p' | sort -u
}

# GPI_ is the prefix of the header's own. cudaStreamDestroy is meant to be one: it tells the arenas.
# What the header's own includes define is not the header's doing: a file of those includes alone
# is the measure. gcc -H lists them: two dots for what the header includes itself.
no_other_macros() { # COMPILER FLAGS SOURCE
    local others
    macros "$1" "$2" "$3" > "$out/with"
    $1 $2 $fake -H -fsyntax-only "$3" 2>&1 |
        sed -n 's,^\.\. \(.*\),#include "\1",p' > "$out/includes.c"
    macros "$1" "$2" "$out/includes.c" > "$out/without"
    grep -q '^GPUPOOL_H$' "$out/with" || { echo "GPUPOOL_H is not defined"; return 1; }
    others=$(comm -23 "$out/with" "$out/without" | grep -v '^GPUPOOL_\|^GPI_\|^USER_H$\|^cudaStreamDestroy$')
    [[ -z $others ]] || { printf 'macros left over:\n%s\n' "$others"; return 1; }
}
