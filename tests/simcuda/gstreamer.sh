#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# GStreamer's own CUDA elements on the simulated driver: frames come out as they went in.
#
#   gstreamer.sh DIR      DIR is where install.sh has put the driver; needs GStreamer 1.26's nvcodec plugin:
#                         tests/rootfs.sh run tests/simcuda/gstreamer.sh DIR
# shellcheck disable=SC2317,SC2329  # functions are called through `check`
set -uo pipefail
driver=$(cd "${1:?usage: gstreamer.sh DIR}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Found anew: what a registry says of elements depends on the driver.
export LD_LIBRARY_PATH=$driver GST_REGISTRY=$work/registry SIMCUDA_ERRORS=$work/violations
# A width whose rows need no padding on the GPU.
caps=video/x-raw,format=RGBA,width=512,height=240,framerate=30/1
failed=0

check() { # NAME COMMAND...
  local name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    echo "PASS $name"
  else
    failed=1
    echo "FAIL $name"
    tail -n 20 "$work/log"
  fi
}

launch() { timeout 60 gst-launch-1.0 -q "$@"; }

# Every pixel of every frame differs from the frame before. What is padded on the GPU loses its padding in videoconvert.
up_and_down() { # FORMAT WIDTH CONVERSION
  local seed film="videotestsrc num-buffers=30 pattern=zone-plate kx2=20 ky2=20 kt=7 kxt=3 !
    video/x-raw,format=$1,width=$2,height=240,framerate=30/1"
  # shellcheck disable=SC2086  # words of a pipeline
  launch $film ! $3 filesink location="$work/before" || return
  [ "$(stat -c %s "$work/before")" -gt 1000000 ] || return
  for seed in 1 2 3; do
    # shellcheck disable=SC2086
    SIMCUDA_SEED=$seed launch $film ! cudaupload ! cudadownload ! $3 filesink location="$work/after" &&
      cmp "$work/before" "$work/after" || return
  done
}

# Every frame is the same one, so it does not matter which of them the reader gets.
between_processes() { # MODE OF THE EXPORTER, OF THE READER
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
  check "$element is there" gst-inspect-1.0 --exists "$element"
done
check "RGBA up and down" up_and_down RGBA 512 ""
check "NV12 up and down" up_and_down NV12 320 "videoconvert ! video/x-raw,format=RGB !"
for mode in legacy mmap; do
  for io in copy import; do check "cudaipcsink $mode, cudaipcsrc $io" between_processes "$mode" "$io"; done
done
[ ! -e "$work/violations" ] || { failed=1 && echo "FAIL violations" && cat "$work/violations"; }
exit $failed
