#!/bin/bash
# Runs the examples, each in build/examples, and says which it left out and why. ON is gpu or sim;
# `make examples` has built what can be built here. Closes with `N passed, N failed, N skipped`.
set -u
cd "$(dirname "$0")/.."
ON=${ON:-sim} here=$PWD programs=$(realpath "${BUILD:-build}/examples")
ran=0 failed=0 omitted=()

run() { # NAME COMMAND...
    echo
    echo "---- $1"
    if (cd "$programs" && "${@:2}"); then ran=$((ran + 1)); else
        echo "FAILED: $1 ended with status $?"
        failed=$((failed + 1))
    fi
}

omit() { # NAME REASON
    omitted+=("left out: $1 ($2)")
}

gpus() {
    nvidia-smi -L 2> /dev/null | grep -c '^GPU'
}

program() { # NAME WHAT-BUILDS-IT NEEDS-A-GPU TOOL...
    local name=$1${4:+, with $4}
    if [[ $3 == 1 && $ON == sim ]]; then omit "$name" "needs a GPU"
    elif [[ ! -x $programs/$1 && $2 == "a C compiler" ]]; then
        echo "FAILED: $name was not built"
        failed=$((failed + 1))
    elif [[ ! -x $programs/$1 ]]; then omit "$name" "not built: needs $2"
    else run "$name" "${@:4}" "./$1"; fi
}

findings() { # TOOL...: fine if a wrong write is reported, and the line that asked for the block
    local told line
    told=$("$@" 2>&1)
    line=$(grep -n 'gpupool_alloc(' "$here/examples/sanitizer_demo.cu" | cut -d: -f1)
    printf '%s\n' "$told"
    grep -q 'Invalid __global__ write' <<< "$told" && grep -q "sanitizer_demo.cu:$line" <<< "$told"
}

python() { # NAME MODULE ARGUMENT...
    if [[ $ON == sim ]]; then omit "$1.py" "needs a GPU"
    elif ! python3 -c "import $2" 2> /dev/null; then omit "$1.py" "needs the Python module $2"
    else run "$1.py" python3 "$here/examples/$1.py" "${@:3}"; fi
}

processes() { # PROGRAM: one for each GPU, as mpirun and torchrun start them
    local count rank started=() status=0
    count=$(gpus)
    for ((rank = 0; rank < count; rank++)); do
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$count NCCL_COMM_ID=127.0.0.1:31337 \
            timeout 120 "$1" &
        started+=($!)
    done
    for rank in "${started[@]}"; do wait "$rank" || status=$?; done
    return $status
}

for source in examples/*.c; do
    name=$(basename "$source" .c)
    if [[ $name != nccl_allreduce ]]; then program "$name" "a C compiler" 0
    elif [[ $ON == gpu ]] && (($(gpus) < 2)); then omit "$name" "needs two GPUs"
    else
        program "$name" "a CUDA toolkit and NCCL" 1
        program "$name" "a CUDA toolkit and NCCL" 1 processes
    fi
done
for source in examples/*.cu; do
    name=$(basename "$source" .cu)
    [[ $name == sanitizer_demo ]] || program "$name" nvcc 1
done
program image_pyramid_plain nvcc 1
if [[ $ON == gpu ]] && ! command -v compute-sanitizer > /dev/null; then
    omit sanitizer_demo "needs compute-sanitizer"
else
    program sanitizer_demo nvcc 1 compute-sanitizer --tool memcheck --error-exitcode 1
    program sanitizer_demo_annotated nvcc 1 findings compute-sanitizer --tool memcheck --nvtx yes
fi
python pytorch_allocator torch
python pytorch_training torch --steps 40
python pytorch_graphs torch
python cupy_allocator cupy

echo
((${#omitted[@]} == 0)) || printf '%s\n' "${omitted[@]}"
echo "$ran passed, $failed failed, ${#omitted[@]} skipped"
((failed == 0))
