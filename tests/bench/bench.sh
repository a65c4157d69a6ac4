#!/bin/bash
# The benchmark with whoever is there: bench.sh BUILD gpu|sim [OPTION OF bench-run]...
#
# On a GPU the allocators of CUB, PyTorch and CuPy are built or run if their compilers and packages
# are there; what is not is named in the output. NVCC, CXX and PYTHON choose the programs.
set -euo pipefail
build=$1 on=$2
shift 2
here=$(dirname "$0")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
options=()

leave_out() { printf 'left out\t%s\n' "$1" >> "$dir/lines"; }

first_line() { head -n 1 "$1" | cut -c 1-150; }

cub() { # needs nvcc, which has CUB's headers
    if [[ -z ${NVCC:-} ]]; then leave_out "CUB: no nvcc"; return; fi
    if "$NVCC" -O2 -std=c++17 -shared -Xcompiler -fPIC -o "$build/peer_cub.so" \
        "$here/peer_cub.cu" > "$dir/cub" 2>&1
    then touch "$dir/cub.built"
    else leave_out "CUB: $(grep -m 1 -i error "$dir/cub" || first_line "$dir/cub")"
    fi
}

torch() {
    local flags
    if ! "${PYTHON:-python3}" "$here/torch_flags.py" > "$dir/flags" 2> "$dir/torch"; then
        leave_out "PyTorch: $(first_line "$dir/flags")"
        return
    fi
    mapfile -t flags < "$dir/flags"
    if "${CXX:-g++}" -O2 -std=c++17 -shared -fPIC -o "$build/peer_torch.so" \
        "$here/peer_torch.cpp" "${flags[@]}" > "$dir/torch" 2>&1
    then touch "$dir/torch.built"
    else leave_out "PyTorch: $(grep -m 1 -i error "$dir/torch" || first_line "$dir/torch")"
    fi
}

cupy() {
    "${PYTHON:-python3}" "$here/cupy_pool.py" >> "$dir/lines" 2> "$dir/cupy" ||
        leave_out "CuPy: $(tail -n 1 "$dir/cupy" | cut -c 1-150)"
}

if [[ $on == gpu ]]; then
    echo "building what CUB and PyTorch need, and running CuPy..." >&2
    cub & torch &
    wait
    cupy # alone: it is timed
    for peer in cub torch; do
        [[ ! -e $dir/$peer.built ]] || options+=(--plugin "$build/peer_$peer.so")
    done
    [[ ! -s $dir/lines ]] || options+=(--lines "$dir/lines")
fi

# Some heaps ask for more thread-local memory than a library that is loaded late gets.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:+$GLIBC_TUNABLES:}glibc.rtld.optional_static_tls=65536
"$build/bench-run" --json "$build/bench.json" "${options[@]}" "$@"
echo "figures in $build/bench.json"
