#!/bin/bash
# The random worlds, each with new seeds, until the time is over: soak.sh FOLDER SECONDS SEED
set -u
end=$((SECONDS + $2))

one() { # PROGRAM: seed after seed
    local seed=$3 ended=0
    while ((SECONDS < end)) && "$folder/$1" $seed $((seed + 9)) > "$folder/$1.soak"; do
        seed=$((seed + 10)) ended=$((ended + 10))
    done
    ((SECONDS < end)) || { echo "$1: $ended seeds, from $3"; return 0; }
    echo "$1:"
    cat "$folder/$1.soak"
    return 1
}
folder=$1 running=()
for program in world world_threads world_clock; do
    one $program "$2" "$3" &
    running+=($!)
done
failed=0
for process in "${running[@]}"; do wait "$process" || failed=$((failed + 1)); done
echo "$((${#running[@]} - failed)) passed, $failed failed"
((failed == 0))
