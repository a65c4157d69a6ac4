# cxx.sh NAME: how cpp_test.sh begins, which sources it: folders, flags and the compilers of
# C++ that this machine has.

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
CC=${CC:-gcc} CXX=${CXX:-g++} BUILD=${BUILD:-build} TOOLKIT=${TOOLKIT:-} NVCC=${NVCC:-}
here=$PWD
mkdir -p "$BUILD"
BUILD=$(realpath "$BUILD")
out=$BUILD/$1
rm -rf "$out"
mkdir -p "$out"
fake="-isystem tests/fakecuda/include -I."
per_thread=-DCUDA_API_PER_THREAD_DEFAULT_STREAM
. tests/gates/checks.sh

compilers=()
for compiler in "$CXX" clang++; do
    if works "$compiler"; then compilers+=("$compiler"); else left_out "$compiler"; fi
done
