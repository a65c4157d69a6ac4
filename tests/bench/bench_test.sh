#!/bin/bash
# The benches with tiny counts: not what they measure, but that every work runs, and that a verdict
# can fail. Closes with `N passed, N failed`.
set -u
here=$(dirname "$0") build=${BUILD:-build}
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

# ---- every work ----
tsv=$build/bench-tiny.tsv
"$here/bench.sh" "$build" sim tiny > "$dir/out" 2> "$dir/err"
holds "without peers it ends well" test $? = 0
figures() { # WORK: as gpupool's line has them
    awk -F '\t' -v work="$1" '$1 == work && $2 == "gpupool"' "$tsv"
}
measured() { # WORK: a time, memory of which most is live, no failure
    figures "$1" | awk -F '\t' '{ ok = $4 == "ns" && $6 > 1 && $9 >= $10 && $10 > 0 && $13 == 0 }
                                END { exit !ok }'
}
for work in random-1k-64 random-10k-64 random-10k-4096 trained thrice log-normal growing \
    growing-64 drift server phases handed sync streams-4 beside-2 beside-4 threads-own threads-one \
    threads-churn threads-address cudafree-loop pair churn-16k churn-large hand-over gpt2var \
    gnn-4; do
    holds "$work was measured: $(figures $work)" measured $work
done
no_calls() { figures pair | awk -F '\t' '{ exit $12 > 0.001 }'; }
holds "no call in a warm pair" no_calls
holds "the worst call was measured" grep -q $'^beside-growth\tgpupool\t.*\tus\t' "$tsv"
holds "who is left out is named" grep -q '^left out: .*PyTorch.*no GPU here' "$dir/out"
holds "and who has no peers" grep -q 'gpupool: no peer' "$dir/out"
holds "no failure is hidden" test ! -s <(grep 'ended with status' "$dir/out")

"$build/bench-run" --work nonsense > /dev/null 2>&1
holds "an unknown work is refused" test $? = 2
"$build/bench-run" --peer nobody > /dev/null 2>&1
holds "an unknown peer is refused" test $? = 2
"$build/bench-run" --plan tiny --peer glibc --work pair > "$dir/out"
holds "a heap is a peer" grep -q $'^pair\tglibc\t.*\tns\t' "$dir/out"

# ---- the verdict, on made-up lines ----
line() { # WORK PEER UNIT LAST FAILURES
    printf '%s\t%s\twords of %s\t%s\t900\t%s\t%s\t%s\t200\t100\t5\t0\t%s\t0\t0\n' "$1" "$2" "$1" \
        "$3" "$4" "$4" "$4" "$5"
}
says() { # STATUS PATTERN: of the lines so far, as a table
    awk -f "$here/${table:-judge}.awk" "$dir/lines" > "$dir/out"
    local status=$?
    holds "status $1, not $status" test $status = "$1"
    holds "says: $2" grep -Eq -- "$2" "$dir/out"
}
{ line a gpupool ns 200 0; line a P ns 100 0; line a Q ns 500 0; } > "$dir/lines"
says 0 '^words of a +gpupool: met, 2.00 of P$'
{ line a gpupool ns 201 0; line a P ns 100 0; } > "$dir/lines"
says 1 '^words of a +gpupool: MISSED, 2.01 of P$'
{ line a gpupool ns 900 0; line a P ns 100 7; line a Q ns 500 0; } > "$dir/lines"
says 0 'gpupool: met, 1.80 of Q$' # a peer that refuses is no peer
{ line a gpupool ns 1 50; line a P ns 100 0; } > "$dir/lines"
says 1 'MISSED, it refuses more'
{ line b gpupool us 190 0; line b P us 10 0; line b clock us 100 0; } > "$dir/lines"
says 0 'gpupool: met, 19.00 of P' # no more than what the machine does to any thread
{ line b gpupool us 210 0; line b P us 10 0; line b clock us 100 0; } > "$dir/lines"
says 1 'gpupool: MISSED, 21.00 of P'
{ line a gpupool ns 200 0; printf 'a\tP\twords of a\t-\tnobody home\n'; } > "$dir/lines"
says 0 'left out: P, words of a: nobody home'
{ line a gpupool ns 1234567 0; line a P ns 1000000 3; } > "$dir/lines"
says 0 ' 900 1,234,567 2.00x 0c +900 1,000,000 2.00x 0c 3!'
{ line pair gpupool ns 25 0; line pair mimalloc ns 10 0; line pair P ns 5 0; } > "$dir/lines"
says 0 'gpupool: met, 2.50 of mimalloc' # the row's own bar
{ line a gpupool ns 25 0; line a glibc ns 10 0; } > "$dir/lines"
says 0 'gpupool: no peer'

# ---- README.md's tables of recorded runs, on the same ----
{ line a gpupool ns 100 0; line a torch-native ns 300 0; line a-4 cudaMallocAsync ns 1 2; } \
    > "$dir/lines"
table=memory
none='\| – ' least='\| \*\*2.000'
says 0 "^\| words of a: 0.00 GB $least\*\* $least\*\* $none$none$none$none$none$least !\*\* \|\$"
says 0 'third replay, one stream \| \*\*100\*\* \| 300 \| – \| – \|$'

echo "$passed passed, $failed failed"
((failed == 0))
