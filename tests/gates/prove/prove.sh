#!/bin/bash
# Proves what stands in tests/gates/prove: prove.sh FOLDER [PROOF...]. The model checker, ESBMC, is
# given the public part of gpupool.h and the rooms that a file names; each proof is run as it is,
# and must hold, and with the header broken as it says, and must fail.
set -u
folder=$1
shift
esbmc=${ESBMC:-esbmc} limit_s=${PROVE_LIMIT_S:-300}
solver=${PROVE_SOLVER:-boolector} # bitwuzla, ESBMC's own choice, has run out of memory on sums
command -v "$esbmc" > /dev/null || {
    echo "make prove needs the model checker ESBMC: set ESBMC to where it is"
    [[ -z ${ESBMC:-} ]] || exit 1 # it was to be there
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
passed=0 failed=0

said() { sed -n "s,^// $2: *,,p" "$1"; } # FILE WORD: what it says of itself

header() { # FILE [EDIT]: what of the header its proofs are about
    mkdir -p "$folder/include"
    awk -v rooms=" $(said "$1" rooms) " '
        /^\/\* == [A-Z]+ =/ { if ($3 == "GROUND") below = 1
                              on = !below || index(rooms, " " $3 " ") }
        on || NR == 1 { print } NR == 1 { on = 1 }
        END { print "#endif" }' gpupool.h | sed "$(said "$1" as)" > "$folder/include/whole.h"
    sed "${2:-}" "$folder/include/whole.h" > "$folder/include/gpupool.h"
    [[ -z ${2:-} ]] || ! cmp -s "$folder/include/whole.h" "$folder/include/gpupool.h"
}

check() { # FILE PROOF: 0 when it holds, 1 when not, 2 when that could not be found out
    timeout "$limit_s" "$esbmc" "$1" --function "$2" --unwind "$(said "$1" unwind)" --64 \
        "--$solver" -I"$folder/include" -Itests/gates/prove -Itests/fakecuda/include \
        > "$folder/$2.log" 2>&1
    if grep -q '^VERIFICATION SUCCESSFUL' "$folder/$2.log"; then return 0; fi
    if grep -q '^VERIFICATION FAILED' "$folder/$2.log"; then
        grep -A 3 '^Violated property' "$folder/$2.log" | grep -q 'unwinding assertion' && return 2
        return 1
    fi
    return 2
}

prove() { # FILE PROOF EDIT
    local start=$SECONDS verdict
    header "$1"
    check "$1" "$2"
    case $? in 0) verdict=holds ;; 1) verdict="DOES NOT HOLD" ;; *) verdict="NO ANSWER" ;; esac
    if [[ $verdict == holds ]]; then
        if ! header "$1" "$3"; then verdict="THE EDIT THAT BREAKS IT FITS NO LINE"
        elif check "$1" "$2"; then verdict="HOLDS EVEN WHEN BROKEN"
        elif (($? == 2)); then verdict="NO ANSWER WHEN BROKEN"
        else verdict="holds, and fails when broken"; fi
    fi
    printf '%-58s %4d s  %s\n' "$2" $((SECONDS - start)) "$verdict"
    if [[ $verdict == holds,* ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

for file in tests/gates/prove/prove_*.c; do
    while read -r edit && read -r _ proof; do
        proof=${proof%%(*}
        (($# == 0)) || [[ " $* " == *" $proof "* ]] || continue
        prove "$file" "$proof" "${edit#// broken: }"
    done < <(grep -E '^// broken: |^void prove_' "$file")
done
echo "$passed passed, $failed failed"
((failed == 0))
