#!/bin/bash
# Works that hate allocators, over all allocators that are there, in one run:
# cliffs.sh BUILD gpu|sim. QUICK=1: fewer works, each once. TINY=1: to see that it runs. WORKS: the
# first words of lines of cliffs.tsv, of the works that are wanted.
#
# Each allocator has a process of its own. PyTorch and CUB are plug-ins, built here if their
# packages and compilers are there; what is not is named. NVCC, CXX and PYTHON choose the programs.
# Exit status 1: gpupool misses a bar.
set -euo pipefail
build=$1 on=$2
here=$(dirname "$0")/..
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
plan=full
[[ -z ${QUICK:-} ]] || plan=quick
[[ -z ${TINY:-} ]] || plan=tiny
works=()
for work in ${WORKS:-}; do works+=(--work "$work"); done
start=$SECONDS

leave_out() { echo "# left out: $1" >> "$dir/lines"; }

measure() { # NAME OPTION...: its lines; who fails half-way is named, and the others go on
    echo "$1..." >&2
    "$build/cliffs" --plan $plan "${works[@]}" --as "$@" >> "$dir/lines" 2> "$dir/said" ||
        leave_out "$1 ended with status $?: $(tail -n 1 "$dir/said" | cut -c 1-150)"
}

unset PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
. "$here/plugins.sh"
measure gpupool
if [[ -e $dir/torch.built ]]; then
    measure torch-native --plugin "$build/peer_torch.so"
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
        measure torch-expandable --plugin "$build/peer_torch.so"
fi
[[ $on != gpu ]] || measure cudaMallocAsync --peer cudaMallocAsync
[[ ! -e $dir/cub.built ]] || measure CUB --plugin "$build/peer_cub.so"
if [[ $on == gpu ]]; then measure cudaMalloc --peer cudaMalloc
else leave_out "cudaMalloc, cudaMallocAsync, CUB, PyTorch: no GPU here"; fi
status=0
awk -f "$here/cliffs/judge.awk" -v tsv="$build/cliffs.tsv" "$dir/lines" || status=$?
grep -q $'^[a-z].*\tgpupool\t' "$dir/lines" || { echo "gpupool was not measured" >&2; status=1; }
echo "all lines in $build/cliffs.tsv; $((SECONDS - start)) s"
exit $status
