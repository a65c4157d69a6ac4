#!/bin/bash
# Runs fuzzers one after the other: fuzz.sh FOLDER SECONDS NAME...
#
# What a fuzzer learns stays in FOLDER/learnt/NAME, beside the corpus that it begins with. An input
# that goes wrong is kept as FOLDER/NAME-crash-...; give it to the fuzzer to see it again. KEEP=1
# replaces the corpus by the smallest one that reaches as much as all that was learnt.
set -u
folder=$1 seconds=$2
shift 2
declare -A longest=([arena]=1024 [limit]=80 [ring]=400 [trace]=400 [import]=400 [sleep]=1024)
passed=0 failed=0

for name in "$@"; do
    corpus=tests/gates/fuzz/corpus/$name learnt=$folder/learnt/$name
    mkdir -p "$corpus" "$learnt"
    if "$folder/$name" -max_len="${longest[$name]}" -len_control=0 -timeout=60 -reload=0 \
        -max_total_time="$seconds" -close_fd_mask=2 -print_final_stats=1 \
        -artifact_prefix="$folder/$name-" "$learnt" "$corpus" > "$folder/$name.log" 2>&1
    then passed=$((passed + 1))
    else
        failed=$((failed + 1))
        tail -n 20 "$folder/$name.log"
    fi
    echo "$name: $(sed -n 's/^Done \([0-9]*\) runs in \([0-9]*\) second.*/\1 inputs in \2 s/p' \
        "$folder/$name.log"), $(find "$learnt" -type f | wc -l) learnt"
    if [[ ${KEEP:-} ]]; then
        rm -rf "$folder/kept" && mkdir "$folder/kept"
        "$folder/$name" -merge=1 -close_fd_mask=3 "$folder/kept" "$corpus" "$learnt" \
            > "$folder/$name-merge.log" 2>&1 && rm -rf "$corpus" && mv "$folder/kept" "$corpus"
    fi
done
echo "$passed passed, $failed failed"
((failed == 0))
