#!/bin/bash
# Runs test programs, JOBS at a time, says of each how it went, and adds up what they say:
# run.sh JOBS PROGRAM...
# UNDER names a program that they are given to, instead of being run by themselves.
#
# A program's last line is `N passed, N failed`, with `, N skipped` where it skips. One that says
# nothing of the kind, crashes, or takes too long has failed. Its whole output is kept in a log.
set -u
limit_s=${TEST_LIMIT_S:-300}
jobs=$1
shift
logs=${BUILD:-build}/log
mkdir -p "$logs"

tally='^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?$'

run_one() { # PROGRAM: leaves NAME.sum, with "passed failed skipped", and NAME.out
    local name start status last passed=0 failed=0 skipped=0 note=
    name=$(basename "$1" .sh)
    start=$SECONDS
    TIMEFORMAT='%U %S'
    { time timeout -k 5 "$limit_s" ${UNDER:-} "$1" > "$logs/$name.out" 2>&1; } 2> "$logs/$name.cpu"
    status=$?
    last=$(tail -n 1 "$logs/$name.out" 2>/dev/null)
    if [[ $last =~ $tally ]]; then
        passed=${BASH_REMATCH[1]} failed=${BASH_REMATCH[2]} skipped=${BASH_REMATCH[4]:-0}
    fi
    if ((status == 124 || status == 137)); then note="stopped after $limit_s s"
    elif ((status > 128)); then note="killed by signal $((status - 128))"
    elif ! [[ $last =~ $tally ]]; then note="ended with status $status and no tally"
    elif ((status != 0 && failed == 0)); then note="ended with status $status after its tally"
    fi
    [[ -z $note ]] || failed=$((failed + 1))
    echo "$passed $failed $skipped" > "$logs/$name.sum"
    printf '%4d of %d, %3d s  %-30s %5d passed %3d failed %3d skipped  %3d s, %5.1f of CPU  %s\n' \
        "$(find "$logs" -name '*.sum' | wc -l)" "$programs" "$SECONDS" "$name" "$passed" \
        "$failed" "$skipped" $((SECONDS - start)) \
        "$(awk '{ print $1 + $2 }' "$logs/$name.cpu")" "$note"
    grep '^left out' "$logs/$name.out"
    if ((failed)); then
        echo "---- the end of $logs/$name.out"
        tail -n 20 "$logs/$name.out"
        echo "----"
    fi
}

rm -f "$logs"/*.sum
running=0 programs=$#
echo "running $programs programs, $jobs at a time; what each says is in $logs"
for program in "$@"; do
    if ((running >= jobs)); then wait -n; else running=$((running + 1)); fi
    # One write for each program's report, or two reports could mix.
    { report=$(run_one "$program"); printf '%s\n' "$report"; } &
done
wait

passed=0 failed=0 skipped=0 bad=
for program in "$@"; do
    name=$(basename "$program" .sh)
    if read -r p f s 2>/dev/null < "$logs/$name.sum"; then :; else p=0 f=1 s=0; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    ((f == 0)) || bad+=" $name"
done
[[ $# -gt 0 ]] || { echo "no test is named so"; failed=1; }
(($# < 6)) || echo "most of CPU, in seconds:$(for program in "$@"; do
    name=$(basename "$program" .sh)
    awk -v name="$name" '{ printf "%.1f %s\n", $1 + $2, name }' "$logs/$name.cpu" 2> /dev/null
done | sort -rn | head -n 6 | awk '{ printf "%s %s %s", (NR > 1 ? "," : ""), $2, $1 }')"
[[ -z $bad ]] || echo "failed:$bad"
echo "$passed passed, $failed failed$( ((skipped)) && echo ", $skipped skipped")"
((failed == 0))
