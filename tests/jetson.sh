#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The first run on an NVIDIA Jetson: which kinds of memory and fence work there. See docs/jetson.md.
#
#   tests/jetson.sh [FOLDER]        FOLDER: with the plugin and the command frameshare (default target/release)
#
# Without a GPU that shares memory, the checks of its memory are skipped.
# shellcheck disable=SC2317,SC2329  # functions are called through `check`
set -uo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
built=$(realpath "${1:-${CARGO_TARGET_DIR:-$repo/target}/release}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/check.sh
. "$repo/tests/check.sh"
mkdir "$work/plugin"
ln -s "$built/libgstframeshare.so" "$work/plugin"
export GST_PLUGIN_PATH=$work/plugin XDG_RUNTIME_DIR=$work GST_REGISTRY=$work/registry.bin

echo "kernel $(uname -r) on $(uname -m), pages of $(getconf PAGESIZE) bytes"
head -n 1 /etc/nv_tegra_release 2>/dev/null || echo "no /etc/nv_tegra_release: this is no Jetson"
"$built/frameshare" doctor >"$work/doctor" 2>&1
sed 's/^/doctor: /' "$work/doctor"

frames="video/x-raw,format=NV12,width=640,height=360,framerate=50/1"
# One process exports 100 frames, two read all of them; every byte is compared.
crosses() { # UPLOAD DOWNLOAD OPTION...
  local upload=$1 download=$2 reader readers=()
  rm -f "$work"/{made,read.*}
  for reader in 1 2; do
    # shellcheck disable=SC2086  # pipelines are words
    timeout 60 gst-launch-1.0 -q framesharesrc stream=first policy=lossless connection-timeout=30000000000 ! $download \
      filesink location="$work/read.$reader" &
    readers+=($!)
  done
  # shellcheck disable=SC2086
  timeout 60 gst-launch-1.0 -q videotestsrc is-live=true num-buffers=100 pattern=ball ! $frames ! tee name=t \
    t. ! queue ! filesink location="$work/made" \
    t. ! queue ! $upload framesharesink stream=first sync=false wait-for-connection=true "${@:3}" || return
  wait "${readers[@]}" || return
  for reader in 1 2; do holds_end "$work/read.$reader" || return; done
}
# A reader that joins late lacks the first frames.
holds_end() { # FILE
  local size
  size=$(stat -c %s "$1") || return
  [ "$size" -ge 1000000 ] && tail -c "$size" "$work/made" | cmp - "$1"
}

check jetson-plugin gst-inspect-1.0 framesharesink
check jetson-host crosses "" "" memory=host

# "0 NAME: memory vmm, pool; fences timeline, event"
kinds() { # WORD
  sed -n "s/.* gpu .*[:;] $1 \([a-z, ]*\).*/\1/p" "$work/doctor" | head -n 1 | tr -d ,
}
memories=$(kinds memory)
fences=$(kinds fences)
case "$memories $fences" in
  " " | *none*)
    echo "SKIP jetson-gpu: no memory or no fence that processes can share; memory \"$memories\", fences \"$fences\""
    exit "$failed"
    ;;
esac
# The GPU of the exporter writes another byte in each frame, and that of the reader reads it.
engine_crosses() {
  "$built/examples/gpu-export" first & exporter=$!
  sleep 0.5
  timeout 30 "$built/examples/gpu-read" first >"$work/bytes"
  wait "$exporter" || return
  cat "$work/bytes"
  [ "$(sed -n 's/.*first byte //p' "$work/bytes" | sort -u | wc -l)" -ge 10 ]
}
if [ -x "$built/examples/gpu-export" ] && [ -x "$built/examples/gpu-read" ]; then
  check jetson-engine engine_crosses
else
  echo "SKIP jetson-engine: cargo build --release --locked --package frameshare --examples"
fi
if ! gst-inspect-1.0 --exists cudaupload; then
  echo "SKIP jetson-elements: no cudaupload here, which GStreamer's plugin nvcodec has"
  exit "$failed"
fi
for memory in $memories; do
  for fence in $fences; do
    check "jetson-$memory-$fence" crosses "cudaupload !" "cudadownload !" "memory=$memory" "fence=$fence"
  done
done
exit "$failed"
