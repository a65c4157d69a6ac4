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

# A kernel that only the pass for the host has made is registered nowhere: no launch finds it.
named() { # reads symbols: each with its name in C++
    cat > "$out/symbols"
    c++filt < "$out/symbols" | paste "$out/symbols" -
}
same_kernels() { # FLAGS LEAST SOURCE: of each kernel's template the host has what the device has
    rm -rf "$out/kept" && mkdir "$out/kept" &&
        $NVCC $1 -I. -keep -keep-dir "$out/kept" -c -o "$out/kernels.o" "$3" || return 1
    sed -n 's/.*\.entry \([A-Za-z0-9_]*\).*/\1/p' "$out"/kept/*.ptx | named > "$out/there"
    nm --defined-only "$out/kernels.o" | sed -n 's/.* \(_Z.*\)/\1/p' | named > "$out/asked"
    awk -F '\t' -v least="$2" '
        function base(name) { sub(/[<(].*/, "", name); return name }
        NR == FNR { there[$2] = 1; kernel[base($2)] = 1; next }
        base($2) in kernel { seen++ }
        base($2) in kernel && !($2 in there) { print "not on the device: " $2; bad = 1 }
        END { exit bad || seen < least }' "$out/there" "$out/asked"
}

# Links with the simulated CUDA, and runs.
link_and_run() { # PROGRAM COMPILER OBJECT...
    $2 -pthread -o "$1" "${@:3}" "$BUILD/fakecuda/none.a" && "$1"
}
