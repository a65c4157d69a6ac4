# cxx.sh NAME: how names.sh and cpp.sh begin, which source it: folders, flags and the compilers of
# C++ that this machine has.

cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
CC=${CC:-gcc} CXX=${CXX:-g++} BUILD=${BUILD:-build} TOOLKIT=${TOOLKIT:-} NVCC=${NVCC:-}
here=$PWD
mkdir -p "$BUILD"
BUILD=$(realpath "$BUILD")
out=$BUILD/$1
rm -rf "$out"
mkdir -p "$out"
fake="-isystem tests/fakecuda/include -I."
main=tests/gates/compile/$1_main.cpp
other=tests/gates/compile/$1_other.cpp
per_thread=-DCUDA_API_PER_THREAD_DEFAULT_STREAM
. tests/gates/compile/checks.sh

compilers=()
for compiler in "$CXX" clang++; do
    if works "$compiler"; then compilers+=("$compiler"); else left_out "$compiler"; fi
done
