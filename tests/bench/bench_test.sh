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

# cell WORK PEER NAME: a figure of the JSON
cell() {
    grep "\"work\":\"$1\",.*\"peer\":\"$2\"," "$dir/json" | sed "s/.*\"$3\":\([0-9.]*\).*/\1/"
}

is() { # AWK CONDITION
    awk "BEGIN { exit !($1) }"
}

printf 'CuPy\tpair\t390\t380\t400\t1000\t100\t391\t500\t600\t700\nleft out\tNobody: asleep\n' \
    > "$dir/lines"
"$run" --hurry --json "$dir/json" --lines "$dir/lines" --work pair \
    --work churn-16k --work holes --work hand-over --work hand-over-busy --work resnet50 \
    --work pair-2 > "$dir/out"
holds "it ends well" test $? = 0
for work in pair churn-16k holes hand-over hand-over-busy resnet50 pair-2; do
    holds "$work was measured" is "0$(cell $work gpupool ns) > 1"
    p=("$(cell $work gpupool p50)" "$(cell $work gpupool p99)" "$(cell $work gpupool max)")
    holds "tails of $work rise: ${p[*]}" is "0${p[0]} <= 0${p[1]} && 0${p[1]} <= 0${p[2]}"
done
holds "glibc has the same works" is "0$(cell churn-16k glibc ns) > 1"
holds "glibc hands nothing over" test -z "$(cell hand-over glibc ns)"

# One record and one wait have a price of 351 ns, and take little time themselves.
ns=$(cell hand-over "record + wait" ns)
holds "the price is in the figure: $ns" is "0$ns > 300 && 0$ns < 1000"
holds "two calls a hand-over" is "$(cell hand-over "record + wait" cuda_calls) == 2"
holds "no call in a warm pair" is "$(cell pair gpupool cuda_calls) == 0"

holds "a line of another's is in the table" grep -Eq 'pair of 4 KiB.* 390 ' "$dir/out"
holds "and in the JSON" is "0$(cell pair CuPy p99) == 500"
holds "who is left out is named" grep -q 'left out: Nobody: asleep' "$dir/out"
holds "what is not there is not judged" grep -Eq '1/15 of cudaMallocAsync.*not judged' "$dir/out"

"$run" --work nonsense > /dev/null 2>&1
holds "an unknown work is refused" test $? = 2
echo 'CuPy pair' > "$dir/lines"
"$run" --hurry --work pair --lines "$dir/lines" > /dev/null 2>&1
holds "a line that makes no sense is refused" test $? = 2

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
