#!/bin/bash
# The benchmark in a hurry: not what it measures, but that it measures what it says. Closes with
# `N passed, N failed`.
set -u
run=${BUILD:-build}/bench-run
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

holds() { # WORDS COMMAND...: the command succeeds
    if "${@:2}"; then passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $1"
    fi
}

"$run" --hurry --work pair --work churn-16k --work hand-over --work resnet50 --work pair-2 \
    > "$dir/out"
holds "it ends well" test $? = 0
for work in 'pair of' churn hand-over 'trace: ResNet' 'pairs, 2'; do
    holds "$work was measured" grep -Eq "^$work.* +[0-9.]+.* p50 [0-9]+, p99 [0-9]+" "$dir/out"
done
holds "no call in a warm pair" grep -q '^pair of.* 0.00 calls' "$dir/out"
holds "a bar" grep -Eq '^trace: ResNet.*at most 60: ' "$dir/out"
"$run" --work nonsense > /dev/null 2>&1
holds "an unknown work is refused" test $? = 2

# ---- the table of make bench-memory ----
printf '%s\n' "x live 2e9" "x reserved 1.02" "x calls-3 7" "y live 1e9" "y reserved 1.08" \
    > "$dir/mapped"
printf '%s\n' "x reserved 2" "y reserved 8" > "$dir/device"
printf '%s\n' "# made up" "x reserved 1.5 - 3" "y reserved 1.5 1.4 -" > "$dir/peers"
awk -f tests/bench/table.awk -v traces="x y" "$dir/mapped" "$dir/device" "$dir/peers" > "$dir/table"
has() { holds "the table has: $1" grep -Fqx -- "$1" "$dir/table"; }
has "| x (2.00 GB live): reserved / live | 1.020 | 2.000 | 1.500 | – | 3.000 |"
has "| in the third | 7 | – | – | – | – |"
has "| mean: reserved / live | 1.050 | 5.000 | 1.500 | – | – |"
has "| geometric mean: reserved / live | 1.050 | 4.000 | 1.500 | – | – |"
has "| mean: least budget / live | – | – | – | – | – |"

echo "$passed passed, $failed failed"
((failed == 0))
