#!/bin/bash
# PyTorch's allocator of examples/, without PyTorch and a GPU. Closes with `N passed, N failed`.
set -u
cd "$(dirname "$0")/../.."
CXX=${CXX:-g++} BUILD=${BUILD:-build}
program=$BUILD/test/pytorch
if ! command -v "$CXX" > /dev/null; then
    echo "left out: needs $CXX"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
mkdir -p "$BUILD/test"
"$CXX" -std=c++17 -O0 -pthread -Wall -Wextra -Werror -I. -I"examples" -Itests \
    -Itests/gates/pytorch \
    -Itests/fakecuda/include -o "$program" tests/gates/pytorch/allocator_test.cpp \
    "$BUILD/fakecuda/none.a" -lm -ldl || exit 1
"$program"
