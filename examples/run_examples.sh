#!/bin/bash
# Runs the examples, each in build/examples, and says which it left out and why. ON is gpu or sim;
# `make examples` has built what can be built here. Closes with `N passed, N failed, N skipped`.
set -u
here=$(cd "$(dirname "$0")" && pwd)
ON=${ON:-sim} programs=$(realpath "${BUILD:-build}/examples")
ran=0 failed=0 omitted=()

run() { # NAME COMMAND...
    echo
    echo "---- $1"
    if (cd "$programs" && timeout 300 "${@:2}"); then ran=$((ran + 1)); else
        echo "FAILED: $1 ended with status $?"
        failed=$((failed + 1))
    fi
}

omit() { # NAME REASON
    omitted+=("left out: $1 ($2)")
}

on_gpu() { # NAME NEED: a program, or a script in Python that needs a module
    if [[ $ON == sim ]]; then omit "$1" "needs a GPU"
    elif [[ $1 == *.py ]] && python3 -c "import $2" 2> /dev/null; then run "$1" python3 "$here/$1"
    elif [[ -x $programs/$1 ]]; then run "$1" "./$1"
    else omit "$1" "needs $2"; fi
}

# ---- C: simulated, too ----
for source in "$here"/*.c; do
    name=$(basename "$source" .c)
    case $name in
    nccl_allreduce) ;;
    take_turns) run "$name" "./$name" $([[ $ON == sim ]] || echo 2048) ;;
    *) run "$name" "./$name" ;;
    esac
done
run "replace_malloc, with CUDA's own" env GPUPOOL_SOURCE=bypass ./replace_malloc
if command -v python3 > /dev/null; then
    run "memory_viz.py" env GPUPOOL_REPORT=map.json sh -c "./memory_map map.svg > /dev/null &&
        python3 '$here/memory_viz.py' map.json map.pickle && ls -l map.svg map.json map.pickle"
else
    omit memory_viz.py "needs python3"
fi

# ---- the others: on a GPU ----
if [[ $ON == gpu ]] && (($(nvidia-smi -L 2> /dev/null | grep -c '^GPU') < 2)); then
    omit nccl_allreduce "needs two GPUs"
else
    on_gpu nccl_allreduce "a CUDA toolkit and NCCL"
fi
on_gpu thrust_vector nvcc
on_gpu rmm_resource "a CUDA toolkit and RMM (pip install librmm-cu13)"
on_gpu pytorch_allocator.py torch
on_gpu cupy_allocator.py cupy

echo
((${#omitted[@]} == 0)) || printf '%s\n' "${omitted[@]}"
echo "$ran passed, $failed failed, ${#omitted[@]} skipped"
((failed == 0))
