#!/bin/bash
# The benchmark with whoever is there: bench.sh BUILD gpu|sim [OPTION OF bench-run]...
# NVCC, CXX and PYTHON choose the programs that build the allocators of CUB and PyTorch.
set -euo pipefail
build=$1 on=$2
shift 2
here=$(dirname "$0")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
options=()
leave_out() { echo "left out: $1"; }
. "$here/plugins.sh"
for peer in cub torch; do
    [[ ! -e $dir/$peer.built ]] || options+=(--plugin "$build/peer_$peer.so")
done
"$build/bench-run" "${options[@]}" "$@"
