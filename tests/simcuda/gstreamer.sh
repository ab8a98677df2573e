#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Test of GStreamer's own CUDA elements on the simulated driver: output frames equal input frames.
#
#   gstreamer.sh DIR      DIR is the directory written by install.sh. Needs GStreamer 1.26's nvcodec plugin:
#                         tests/rootfs.sh run tests/simcuda/gstreamer.sh DIR
# shellcheck disable=SC2317,SC2329  # functions are called through `check`
set -uo pipefail
driver=$(cd "${1:?usage: gstreamer.sh DIR}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A registry of its own: the registered elements depend on the driver.
export LD_LIBRARY_PATH=$driver GST_REGISTRY=$work/registry SIMCUDA_ERRORS=$work/violations
# At this width the rows have no padding on the GPU.
caps=video/x-raw,format=RGBA,width=512,height=240,framerate=30/1
# shellcheck source=tests/check.sh
. "$(dirname "$0")/../check.sh"

launch() { timeout 60 gst-launch-1.0 -q "$@"; }

# Every pixel of every frame differs from the previous frame. The element videoconvert removes the padding of GPU rows.
round_trip() { # FORMAT WIDTH CONVERSION
  local seed video="videotestsrc num-buffers=30 pattern=zone-plate kx2=20 ky2=20 kt=7 kxt=3 !
    video/x-raw,format=$1,width=$2,height=240,framerate=30/1"
  # shellcheck disable=SC2086  # separate words of a pipeline
  launch $video ! $3 filesink location="$work/before" || return
  [ "$(stat -c %s "$work/before")" -gt 1000000 ] || return
  for seed in 1 2 3; do
    # shellcheck disable=SC2086
    SIMCUDA_SEED=$seed launch $video ! cudaupload ! cudadownload ! $3 filesink location="$work/after" &&
      cmp "$work/before" "$work/after" || return
  done
}

# All frames are equal, so the result does not depend on the frames that the reader receives.
between_processes() { # EXPORTER_MODE READER_MODE
  launch videotestsrc num-buffers=1 pattern=smpte100 ! "$caps" ! filesink location="$work/one" || return
  for _ in {1..20}; do cat "$work/one"; done >"$work/before"
  rm -f "$work/socket"
  timeout 60 gst-launch-1.0 -q videotestsrc is-live=true pattern=smpte100 ! "$caps" ! cudaupload ! \
    cudaipcsink ipc-mode="$1" address="$work/socket" &
  local exporter=$! result
  for _ in {1..200}; do [ -e "$work/socket" ] || sleep 0.1; done
  launch cudaipcsrc num-buffers=20 io-mode="$2" address="$work/socket" ! cudadownload ! filesink location="$work/after" &&
    cmp "$work/before" "$work/after"
  result=$?
  kill "$exporter" && wait "$exporter"
  return "$result"
}

for element in cudaupload cudadownload cudaipcsink cudaipcsrc; do
  check "$element exists" gst-inspect-1.0 --exists "$element"
done
check "RGBA upload and download" round_trip RGBA 512 ""
check "NV12 upload and download" round_trip NV12 320 "videoconvert ! video/x-raw,format=RGB !"
for mode in legacy mmap; do
  for io in copy import; do check "cudaipcsink $mode, cudaipcsrc $io" between_processes "$mode" "$io"; done
done
[ ! -e "$work/violations" ] || { failed=1 && echo "FAIL violations" && cat "$work/violations"; }
exit $failed
