# checks.sh: what the gates share, which source it. $out is their folder.
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
