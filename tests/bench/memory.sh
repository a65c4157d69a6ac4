#!/bin/bash
# Reserved memory and speed on the recorded traces, beside what others need, as a table in Markdown:
# memory.sh BUILD gpu|sim. QUICK=1 leaves out the least budgets, which are found by trying.
#
# Times are this machine's, with CUDA's share from the price list where it is simulated. The others
# are measured in the same run where there are a GPU and PyTorch; else their figures come from
# tests/bench/peers.txt, measured once on an NVIDIA H200 with PyTorch 2.11.
set -euo pipefail
build=$1 on=$2 here=$(dirname "$0")
traces="gpt2var frcnn resnet50 llamagen"
least=${QUICK:+no}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

field() { # JSON NAME: - where it is null or missing
    local value
    value=$(sed -n "s/.*\"$2\":\([0-9.]*\)[,}].*/\1/p" <<< "$1")
    echo "${value:--}"
}

squeeze() { # SOURCE TRACE LIMIT: at 1.02 times the least budget
    local json failures limit
    limit=$(awk -v b="$3" 'BEGIN { printf "%.0f", b * 1.02 }')
    json=$("$build/replay" --json --limit "$limit" --source "$1" "tests/traces/$2.trace.gz" || true)
    failures=$(field "$json" failures)
    [[ $failures == 0 ]] || echo "$2, source $1, $limit bytes: $failures failures" >&2
    echo "$2 squeezed-cold $(field "$json" ns_per_op_cold)"
    echo "$2 squeezed-warm $(field "$json" ns_per_op_warm)"
}

measure() { # SOURCE: lines of TRACE FIGURE VALUE
    local trace json limit
    for trace in $traces; do
        echo "$trace, source $1" >&2
        json=$("$build/replay" --json $([[ $least ]] || echo --min-limit) --source "$1" \
            "tests/traces/$trace.trace.gz")
        echo "$trace live $(field "$json" peak_live_bytes)"
        echo "$trace reserved $(field "$json" reserved_over_live)"
        echo "$trace least $(field "$json" min_limit_over_live)"
        echo "$trace cold $(field "$json" ns_per_op_cold)"
        echo "$trace warm $(field "$json" ns_per_op_warm)"
        limit=$(field "$json" min_limit_bytes)
        [[ $limit == - ]] || squeeze "$1" "$trace" "$limit"
    done
}

peers() { # the others' lines, and what they are
    if [[ $on == gpu ]]; then
        "${PYTHON:-python3}" "$here/torch_replay.py" $([[ $least ]] || echo --least) \
            $(printf 'tests/traces/%s.trace.gz ' $traces) > "$dir/peers" || true
    fi
    [[ -s $dir/peers ]] || cp "$here/peers.txt" "$dir/peers"
    sed -n '1s/^# */The others: /p' "$dir/peers"
}

echo "On $(uname -m), $(nproc) processors," \
     "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1);" \
     "$("$build/replay" tests/traces/resnet50.trace.gz | sed -n '1s/^on: \([^;]*\);.*/\1/p')."
measure mapped > "$dir/mapped"
measure device > "$dir/device"
peers
echo
awk -f "$here/table.awk" -v traces="$traces" "$dir/mapped" "$dir/device" "$dir/peers"
echo
echo "Share of a fixed 64 GiB range in use at the first failure (VMA 0.98, OffsetAllocator 0.97,"
echo "a power-of-two buddy 0.72):"
"$build/fixed_range"
