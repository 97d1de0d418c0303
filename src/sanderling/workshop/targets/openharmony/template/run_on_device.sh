#!/bin/sh
# Pushes the model, the runner and ONNX Runtime to a device over hdc, runs them, and fetches benchmark.json.
#
#   sh run_on_device.sh KEY OUTPUT [REPEATS]
#
# KEY      as `hdc list targets` shows it
# OUTPUT   of build/: has bin/sanderling-run and lib/libonnxruntime.so; gets benchmark.json
#
# `sanderling bench PKG --on hdc:KEY --runner FOLDER` does the same, and keeps the result in the package.
set -eu

fail() {
    echo "run_on_device.sh: $1" >&2
    exit "$2"
}

[ $# -ge 2 ] || fail "usage: run_on_device.sh KEY OUTPUT [REPEATS]" 2
key=$1
output=$2
repeats=${3:-100}
hdc=${HDC:-hdc}
here=$(cd "$(dirname "$0")" && pwd)
there=/data/local/tmp/sanderling

command -v "$hdc" > /dev/null || fail "hdc is missing: it comes with the OHOS SDK (toolchains)" 3
for file in "$output/bin/sanderling-run" "$output/lib/libonnxruntime.so"; do
    [ -f "$file" ] || fail "$file is missing: run the scripts in build/ first" 3
done
targets=$("$hdc" list targets | tr -d '\r')
echo "$targets" | grep -qxF -- "$key" || fail "hdc reaches no device '$key': $(echo "$targets" | tr '\n' ' ')" 3

# hdc's exit code says nothing of the command on the device: its last line does.
on_device() {
    told=$("$hdc" -t "$key" shell "$1; echo exit=\$?" | tr -d '\r')
    echo "$told" | sed '$d' >&2
    [ "$(echo "$told" | tail -n 1)" = exit=0 ] || fail "on the device: $(echo "$told" | tail -n 2 | head -n 1)" 1
}

send() {
    told=$("$hdc" -t "$key" file send "$1" "$2" | tr -d '\r')
    case $told in *FileTransfer\ finish*) ;; *) fail "hdc could not send $1: $told" 1 ;; esac
}

on_device "rm -rf $there && mkdir -p $there/golden"
for file in "$here"/model/*.ort "$here"/model/golden.tsv; do
    send "$file" "$there/$(basename "$file")"
done
for file in "$here"/model/golden/*; do
    send "$file" "$there/golden/$(basename "$file")"
done
send "$output/bin/sanderling-run" "$there/sanderling-run"
send "$output/lib/libonnxruntime.so" "$there/libonnxruntime.so"
on_device "chmod 755 $there/sanderling-run && cd $there && ./sanderling-run . --repeats $repeats --out benchmark.json"
told=$("$hdc" -t "$key" file recv "$there/benchmark.json" "$output/benchmark.json" | tr -d '\r')
[ -s "$output/benchmark.json" ] || fail "hdc could not fetch benchmark.json: $told" 1
echo "$output/benchmark.json"
