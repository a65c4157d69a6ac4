# plugins.sh: builds the peers that are plug-ins, CUB and PyTorch, in $build, and leaves
# $dir/NAME.built for each. Who needs it sources this, and has leave_out and $here, the benches'
# folder.

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
        leave_out "PyTorch: $(head -n 1 "$dir/flags" | cut -c 1-150)"
        return
    fi
    mapfile -t flags < "$dir/flags"
    build_plugin torch "${CXX:-g++}" -O2 -std=c++17 -shared -fPIC -o "$build/peer_torch.so" \
        "$here/peer_torch.cpp" "${flags[@]}"
}

# Some heaps ask for more thread-local memory than a library that is loaded late gets.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:+$GLIBC_TUNABLES:}glibc.rtld.optional_static_tls=65536
if [[ $on == gpu ]]; then # before anything is timed
    cub & torch &
    wait
fi
