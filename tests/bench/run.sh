#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the bench and runs it with a GStreamer that has all rivals: this machine's own from 1.24 on, else the one in the
# root file system that tests/rootfs.sh makes. Options go to the bench; raw figures to target/bench.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
mkdir -p "$target/bench"
target=$(cd "$target" && pwd)

cargo build --release --locked --package frameshare-bench
# Slow and paused readers, and observers, need no rival; options are for the comparison only.
if [ $# = 0 ]; then
  "$target/release/frameshare-bench" --slow-readers 3
  "$target/release/frameshare-bench" --observers 3
  "$target/release/frameshare-bench" --many 3
  "$target/release/frameshare-bench" --spin 3
fi

# One decoder whose frames are shared, beside one in each reader.
if [ $# = 0 ]; then
  clip=$target/bench/clip.h264
  gst-launch-1.0 -q filesrc location="$(tools/clip.sh)" ! qtdemux ! h264parse config-interval=-1 \
    ! video/x-h264,stream-format=byte-stream,alignment=au ! filesink location="$clip"
  "$target/release/frameshare-bench" --sharing "$clip" --raw "$target/bench/$(date +%Y%m%d-%H%M%S)-sharing.jsonl"
fi
# iceoryx2 has no elements, and is compared with the engine.
if [ $# = 0 ]; then
  if cargo build --release --locked --manifest-path tests/rivals/iceoryx2/Cargo.toml --target-dir "$target/iceoryx2"; then
    "$target/release/frameshare-bench" --iceoryx2 "$target/iceoryx2/release/frameshare-iceoryx2" \
      --raw "$target/bench/$(date +%Y%m%d-%H%M%S)-iceoryx2.jsonl"
  else
    echo "bench: without iceoryx2, which cannot be built" >&2
  fi
fi
bench=("$target/release/frameshare-bench")
options=(--raw "$target/bench/$(date +%Y%m%d-%H%M%S).jsonl")

if pkg-config --exists 'gstreamer-1.0 >= 1.24'; then
  tools/setup.sh bench || echo "bench: without PipeWire, which cannot be installed" >&2
elif why_not=$(tests/rootfs.sh why-not) && [ -n "$why_not" ]; then
  echo "bench: this machine's GStreamer is older than 1.24, so there is no unixfd to compare with, and $why_not" >&2
else
  export ALSO="pipewire pipewire-bin gstreamer1.0-pipewire"
  bench=(tests/rootfs.sh run "${bench[@]}")
  options+=(--gstreamer-of "Debian trixie's, in a root file system of its own")
fi
# Everybody's defaults behind a live source.
[ $# != 0 ] || "${bench[@]}" --live
exec "${bench[@]}" "${options[@]}" "$@"
