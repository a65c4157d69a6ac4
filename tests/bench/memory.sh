#!/bin/bash
# Reserved memory and speed on the recorded traces, beside what others need: memory.sh BUILD
#
# The others' figures were measured once, on an NVIDIA H200 with PyTorch 2.11; tests/bench/peers.txt
# has them. Times are this machine's, with CUDA's share from the price list where it is simulated.
set -euo pipefail
build=$1
traces="gpt2var frcnn resnet50 llamagen"
peers=$(dirname "$0")/peers.txt

field() { # JSON NAME: 0 where it is null
    sed -n "s/.*\"$2\":\([0-9.]*\|null\)[,}].*/\1/p" <<< "$1" | sed 's/null/0/'
}

peer() { # TRACE ROW: PyTorch native, expandable segments, cudaMallocAsync
    sed -n "s/^$1 $2 //p" "$peers"
}

geomean() { # numbers, one a line or in columns: the mean of each column
    awk '{ for (i = 1; i <= NF; i++) sum[i] += log($i) }
         END { for (i = 1; i <= NF; i++) printf "%.3f ", exp(sum[i] / NR) }'
}

mean_row() { # WORDS PEERS-ROW NUMBER...
    row "$1" "$(printf '%s\n' "${@:3}" | geomean)" \
        "$(sed -n "s/^[a-z0-9]* $2 //p" "$peers" | geomean)"
}

row() { # WORDS FIGURE PEERS
    printf '  %-34s %9s   %9s %9s %9s\n' "$1" $2 ${3:-- - -}
}

measure() { # SOURCE
    local reserved_all=() least_all=() json squeezed limit
    for trace in $traces; do
        local file=tests/traces/$trace.trace.gz
        json=$("$build/replay" --json --min-limit --source "$1" "$file")
        limit=$(field "$json" min_limit_bytes)
        echo "$trace, source $1, $(field "$json" events) events," \
             "$(field "$json" peak_live_bytes | awk '{ printf "%.2f GB", $1 / 1e9 }') live"
        row "reserved / live, no limit" "$(field "$json" reserved_over_live)" \
            "$(peer $trace reserved)"
        row "least budget / live" "$(field "$json" min_limit_over_live)" "$(peer $trace least)"
        row "ns an operation, cold" "$(field "$json" ns_per_op_cold)" "$(peer $trace cold)"
        row "ns an operation, warm" "$(field "$json" ns_per_op_warm)" "$(peer $trace warm)"
        reserved_all+=("$(field "$json" reserved_over_live)")
        [[ $limit != 0 ]] || continue
        least_all+=("$(field "$json" min_limit_over_live)")
        limit=$(awk -v b="$limit" 'BEGIN { printf "%.0f", b * 1.02 }')
        squeezed=$("$build/replay" --json --limit "$limit" --source "$1" "$file" || true)
        row "at 1.02 x the least budget, cold" "$(field "$squeezed" ns_per_op_cold)"
        row "at 1.02 x the least budget, warm" "$(field "$squeezed" ns_per_op_warm)"
        row "failures there" "$(field "$squeezed" failures)"
    done
    echo "geometric means, source $1"
    mean_row "reserved / live, no limit" reserved "${reserved_all[@]}"
    ((${#least_all[@]} == 0)) || mean_row "least budget / live" least "${least_all[@]}"
    echo
}

echo "on $(uname -m), $(nproc) processors," \
     "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)"
printf '  %-34s %9s   %9s %9s %9s\n\n' "" gpupool native expandable async
measure auto
measure device
echo "share of a fixed 64 GiB range in use at the first failure (VMA 0.98, OffsetAllocator 0.97,"
echo "a power-of-two buddy 0.72)"
"$build/fixed_range"
