#!/bin/bash
# Makes one target after the other, whatever becomes of them, and then says how each of them ended:
# all.sh FOLDER TARGET... A target's whole output is kept in FOLDER/TARGET.log.
set -u -o pipefail
folder=$1
shift
mkdir -p "$folder"
passed=0 failed=0 lines=()

for target in "$@"; do
    echo "==== make $target"
    start=$SECONDS
    if "${MAKE:-make}" --no-print-directory "$target" 2>&1 | tee "$folder/$target.log"
    then ended=passed passed=$((passed + 1))
    else ended=FAILED failed=$((failed + 1)); fi
    lines+=("$(printf '%-10s %s %5d s  %s' "$target" "$ended" $((SECONDS - start)) \
        "$(grep -E '^[0-9]+ passed|skipped' "$folder/$target.log" | tail -n 1)")")
done
echo "==== all"
printf '%s\n' "${lines[@]}" "$passed passed, $failed failed"
((failed == 0))
