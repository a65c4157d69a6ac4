#!/bin/bash
# Works through all allocators that are there, in one run: bench.sh BUILD gpu|sim PLAN, with a plan
# of bench-run. WORKS: the first words of lines of BUILD/bench-PLAN.tsv, of the works wanted.
#
# Each allocator has a process of its own. PyTorch and CUB are plug-ins, built here if their
# packages and compilers are there; what is not is named. NVCC, CXX and PYTHON choose the programs.
# Exit status 1: gpupool misses a bar.
set -euo pipefail
build=$1 on=$2 plan=$3
here=$(dirname "$0")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
works=()
for work in ${WORKS:-}; do works+=(--work "$work"); done
start=$SECONDS
unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
# Some heaps ask for more thread-local memory than a library that is loaded late gets.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:+$GLIBC_TUNABLES:}glibc.rtld.optional_static_tls=65536

leave_out() { echo "# left out: $1" >> "$dir/lines"; }

# ---- the plug-ins, before anything is timed ----

build_plugin() { # NAME COMMAND...
    if "${@:2}" > "$dir/$1" 2>&1; then touch "$dir/$1.built"
    else leave_out "$1: $(grep -m 1 -i error "$dir/$1" || head -n 1 "$dir/$1" | cut -c 1-150)"
    fi
}

cub() { # needs nvcc, which has CUB's headers
    if [[ -z ${NVCC:-} ]]; then leave_out "CUB: no nvcc"; return; fi
    build_plugin cub "$NVCC" -O2 -std=c++17 -shared -Xcompiler -fPIC -o "$build/peer_cub.so" \
        "$here/peer_cub.cu"
}

torch() {
    local flags
    if ! "${PYTHON:-python3}" "$here/torch_flags.py" > "$dir/flags" 2> "$dir/why"; then
        leave_out "PyTorch: $(tail -n 1 "$dir/why" | cut -c 1-150)"
        return
    fi
    mapfile -t flags < "$dir/flags"
    build_plugin torch "${CXX:-g++}" -O2 -std=c++17 -shared -fPIC -o "$build/peer_torch.so" \
        "$here/peer_torch.cpp" "${flags[@]}"
}

if [[ $on == gpu ]]; then
    cub & torch &
    wait
fi

# ---- the allocators ----

measure() { # NAME OPTION...: its lines; who fails half-way is named, and the others go on
    echo "$1..." >&2
    "$build/bench-run" --plan "$plan" "${works[@]}" --as "$@" >> "$dir/lines" 2> "$dir/said" ||
        leave_out "$1 ended with status $?: $(tail -n 1 "$dir/said" | cut -c 1-150)"
}

measure gpupool
if [[ -e $dir/torch.built ]]; then
    measure torch-native --plugin "$build/peer_torch.so"
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
        measure torch-expandable --plugin "$build/peer_torch.so"
fi
[[ $on != gpu ]] || measure cudaMallocAsync --peer cudaMallocAsync
if [[ $plan != memory ]]; then
    [[ ! -e $dir/cub.built ]] || measure CUB --plugin "$build/peer_cub.so"
    [[ $on != gpu ]] || measure cudaMalloc --peer cudaMalloc
fi
[[ $on == gpu ]] || leave_out "cudaMalloc, cudaMallocAsync, CUB, PyTorch: no GPU here"
if [[ $plan == host ]]; then
    for peer in mimalloc glibc "record + wait"; do measure "$peer" --peer "$peer"; done
fi
tsv=$build/bench-$plan.tsv table=judge status=0
[[ $plan != memory ]] || table=memory
awk -f "$here/$table.awk" -v tsv="$tsv" "$dir/lines" || status=$?
grep -q $'^[a-z].*\tgpupool\t' "$dir/lines" || { echo "gpupool was not measured" >&2; status=1; }
echo "all lines in $tsv; $((SECONDS - start)) s"
exit $status
