#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Splits a decoded frame's cost on a GPU host, as root, with the bundle of tests/gpu/bundle.sh: CPU time and CUDA calls of
# exporter and reader, and of the decoder alone as the control, 1080p at full rate; and the parts of a frame in host
# memory at that rate, by controls. Options go to the benchmark.
#
#   tests/bench/gpu-split.sh [OPTION...]
#
# The calls are counted in one run, and the CPU time is that of another one, since counting takes time too.
set -euo pipefail
cd "$(dirname "$0")/../.."
BUNDLE=${BUNDLE:-$PWD/.gpu}
# shellcheck source=tests/gpu/enter-runtime.sh
. tests/gpu/enter-runtime.sh
cp --remove-destination "$BUNDLE"/lib/* "$BUNDLE"/bin/* "$BUNDLE"/clips/* "$RUNTIME/work/"
cc -shared -fPIC -O2 -o "$RUNTIME/work/libcuda-calls.so" tests/bench/cuda-calls.c -ldl
bench=(timeout --kill-after=10 "${LIMIT:-240}" /work/frameshare-bench --clips /work --sizes 1920x1080 --readers 1 --rates 0 --seconds 2)

in_gst "${bench[@]}" --rounds 3 --transports decoder,gpu,gpu-pool,cudaipc "$@" </dev/null
for transport in decoder gpu gpu-pool; do
  rm -f "$RUNTIME"/work/calls.*
  in_gst LD_PRELOAD=/work/libcuda-calls.so CUDA_CALLS=/work/calls \
    "${bench[@]}" --rounds 1 --transports "$transport" "$@" </dev/null >/dev/null
  echo
  echo "CUDA calls, $transport"
  tests/bench/cuda-calls.py "$RUNTIME/work/calls"
done
in_gst timeout --kill-after=10 "${LIMIT:-240}" /work/frameshare-bench --cost-split 3 770 </dev/null
