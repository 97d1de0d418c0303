#!/bin/sh
# The sample in runner/, for OpenHarmony on @ARCH@: OHOS_SDK=.../native sh build/build_runner.sh OUTPUT
set -eu

fail() {
    echo "build_runner.sh: $1" >&2
    exit "$2"
}

[ $# -eq 1 ] || fail "usage: build_runner.sh OUTPUT" 2
[ -n "${OHOS_SDK:-}" ] || fail "set OHOS_SDK to the folder 'native' of the OHOS SDK" 3
command -v cmake > /dev/null || fail "cmake is missing on this machine" 3
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
mkdir -p "$1/bin"
cmake -S "$root/runner" -B "$1/runner" -DCMAKE_BUILD_TYPE=Release \
    "-DCMAKE_TOOLCHAIN_FILE=$here/ohos.cmake" -DOHOS_ARCH=@ARCH@
cmake --build "$1/runner"
cp "$1/runner/sanderling-run" "$1/bin/sanderling-run"
echo "$1/bin/sanderling-run"
