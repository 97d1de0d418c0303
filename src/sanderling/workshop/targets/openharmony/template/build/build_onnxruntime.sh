#!/bin/sh
# ONNX Runtime for OpenHarmony on @ARCH@, with the compiler of the OHOS SDK.
#
#   git clone --branch v@VERSION@ --recursive https://github.com/microsoft/onnxruntime
#   OHOS_SDK=.../native sh build/build_onnxruntime.sh minimal onnxruntime out
#
# FORM     minimal: only the operators of model/required_operators.config, loads .ort only; full: everything
# SOURCE   the clone
# OUTPUT   gets lib/libonnxruntime.so
#
# Needs Python 3, CMake 3.28 and Ninja of the host: the SDK's own CMake is too old.
set -eu

fail() {
    echo "build_onnxruntime.sh: $1" >&2
    exit "$2"
}

[ $# -eq 3 ] || fail "usage: build_onnxruntime.sh minimal|full SOURCE OUTPUT" 2
form=$1
source=$2
output=$3
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")

[ -n "${OHOS_SDK:-}" ] || fail "set OHOS_SDK to the folder 'native' of the OHOS SDK" 3
[ -f "$OHOS_SDK/build/cmake/ohos.toolchain.cmake" ] || fail "$OHOS_SDK has no build/cmake/ohos.toolchain.cmake" 3
[ -f "$source/tools/ci_build/build.py" ] || fail "$source is no clone of ONNX Runtime" 2
for tool in python3 cmake ninja; do
    command -v "$tool" > /dev/null || fail "$tool is missing on this machine" 3
done

# Clang 15 has no bfloat16_t and not all of FP16's intrinsics: newer sources than 1.16.3 do not compile with it.
clang=$("$OHOS_SDK/llvm/bin/clang" --version | sed -n 's/.*clang version \([0-9][0-9]*\).*/\1/p')
wanted=$(cat "$source/VERSION_NUMBER")
if [ "${clang:-0}" -lt 16 ] && [ "$wanted" != 1.16.3 ] && [ -z "${ANYWAY:-}" ]; then
    fail "this SDK has Clang $clang, and ONNX Runtime $wanted needs 16: take a newer SDK, or a library that was built
before (see README.md), or sources with their FP16 and BF16 kernels taken out, and set ANYWAY=1" 3
fi

set -- --config Release
case $form in
minimal)
    set -- --config MinSizeRel --minimal_build --disable_ml_ops \
        --include_ops_by_config "$root/model/required_operators.config" --enable_reduced_operator_type_support
    ;;
full) ;;
*) fail "FORM is minimal or full, not '$form'" 2 ;;
esac

# A flag of x86-64 that the build adds for the host's processor, and Clang refuses for Arm.
sed -i 's/-fcf-protection//' "$source/tools/ci_build/build.py"

mkdir -p "$output/lib"
python3 "$source/tools/ci_build/build.py" \
    --build_dir "$output/build" "$@" \
    --build_shared_lib --skip_tests --skip_submodule_sync --parallel --compile_no_warning_as_error \
    --cmake_generator Ninja \
    --cmake_extra_defines \
    "CMAKE_TOOLCHAIN_FILE=$here/ohos.cmake" \
    OHOS_ARCH=@ARCH@ \
    onnxruntime_CROSS_COMPILING=ON \
    onnxruntime_BUILD_UNIT_TESTS=OFF

built=$(find "$output/build" -name 'libonnxruntime.so*' -type f | head -n 1)
[ -n "$built" ] || fail "the build left no libonnxruntime.so below $output/build" 1
cp "$built" "$output/lib/libonnxruntime.so"
"$OHOS_SDK/llvm/bin/llvm-strip" "$output/lib/libonnxruntime.so"
echo "$output/lib/libonnxruntime.so"
