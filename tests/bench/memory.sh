#!/bin/bash
# Reserved memory and speed on the recorded traces, beside what others need, as a table in Markdown:
# memory.sh BUILD gpu|sim. QUICK=1 leaves out the least budgets, which are found by trying.
#
# Times are this machine's, with CUDA's share from the price list where it is simulated. The others
# are measured in the same run where there are a GPU and PyTorch; else their figures come from
# tests/bench/peers.txt, which says where they were measured.
set -euo pipefail
build=$1 on=$2 here=$(dirname "$0")
traces="gpt2var frcnn resnet50 llamagen gnn convnext"
least=${QUICK:+no}
many=20 # passes, where three are not enough to see what memory comes to
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

field() { # JSON NAME: - where it is null or missing
    local value
    value=$(sed -n "s/.*\"$2\":\([0-9.]*\)[,}].*/\1/p" <<< "$1")
    echo "${value:--}"
}

nth() { # JSON NAME N: of a list
    local value
    value=$(sed -n "s/.*\"$2\":\[\([0-9.,]*\)\].*/\1/p" <<< "$1" | cut -d , -f "$3")
    echo "${value:--}"
}

replay() { # SOURCE TRACE OPTION...: its figures as JSON
    "$build/replay" --json --source "$1" "${@:3}" "tests/traces/$2.trace.gz"
}

squeeze() { # SOURCE TRACE LIMIT: at 1.02 times the least budget
    local json failures limit
    limit=$(awk -v b="$3" 'BEGIN { printf "%.0f", b * 1.02 }')
    json=$(replay "$1" "$2" --limit "$limit" || true)
    failures=$(field "$json" failures)
    [[ $failures == 0 ]] || echo "$2, source $1, $limit bytes: $failures failures" >&2
    echo "$2 squeezed-cold $(field "$json" ns_per_op_cold)"
    echo "$2 squeezed-warm $(field "$json" ns_per_op_warm)"
}

repeat() { # SOURCE TRACE: twenty times over
    local json pass
    json=$(replay "$1" "$2" --passes $many)
    echo "$2 reserved-$many $(field "$json" reserved_over_live)"
    for pass in 1 3 5; do echo "$2 calls-$pass $(nth "$json" cuda_calls_by_pass $pass)"; done
    [[ $least ]] || json=$(replay "$1" "$2" --passes 1 --min-limit --limit-passes $many)
    echo "$2 least-$many $(field "$json" min_limit_over_live)"
}

spread() { # SOURCE TRACE: over four streams; the simulated device stays behind the host
    local json
    json=$(replay "$1" "$2" --streams 4 $([[ $on == gpu ]] || echo --behind))
    echo "$2 streams-reserved $(field "$json" reserved_over_live)"
    echo "$2 streams-warm $(field "$json" ns_per_op_warm)"
}

measure() { # SOURCE: lines of TRACE FIGURE VALUE
    local trace json limit
    for trace in $traces; do
        echo "$trace, source $1" >&2
        json=$(replay "$1" "$trace" $([[ $least ]] || echo --min-limit))
        echo "$trace live $(field "$json" peak_live_bytes)"
        echo "$trace reserved $(field "$json" reserved_over_live)"
        echo "$trace least $(field "$json" min_limit_over_live)"
        echo "$trace cold $(field "$json" ns_per_op_cold)"
        echo "$trace warm $(field "$json" ns_per_op_warm)"
        limit=$(field "$json" min_limit_bytes)
        [[ $limit == - ]] || squeeze "$1" "$trace" "$limit"
        repeat "$1" "$trace"
        spread "$1" "$trace"
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
[[ $on == gpu ]] || echo "With four streams the simulated device always stays behind the host."
