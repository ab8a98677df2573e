#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Repeats the runs behind the tables and charts of docs/performance.md, some 6 minutes on two idle cores, and keeps the raw
# figures in tests/bench/results. `make charts` then writes tables and charts anew.
#
#   tests/bench/table.sh [ROUNDS]       3 rounds; frameshare and its rivals in turn in each
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3}
target=${CARGO_TARGET_DIR:-$PWD/target}
mkdir -p "$target/bench"
target=$(cd "$target" && pwd)
results=$PWD/tests/bench/results
bench=$target/release/frameshare-bench
iceoryx2=$target/iceoryx2/release/frameshare-iceoryx2

cargo build --release --locked --package frameshare-bench
cargo build --release --locked --manifest-path tests/rivals/iceoryx2/Cargo.toml --target-dir "$target/iceoryx2"
if pkg-config --exists 'gstreamer-1.0 >= 1.24'; then
  tools/setup.sh bench
  with=() gstreamer=$(gst-launch-1.0 --version | sed -n 's/^GStreamer //p')
else
  why_not=$(tests/rootfs.sh why-not)
  [ -z "$why_not" ] || { echo "bench: unixfd needs GStreamer 1.24 or newer, and $why_not" >&2 && exit 1; }
  export ALSO="pipewire pipewire-bin gstreamer1.0-pipewire"
  tests/rootfs.sh make
  with=(tests/rootfs.sh run)
  gstreamer=$("${with[@]}" gst-launch-1.0 --version | sed -n 's/^GStreamer //p')
fi
clip=$target/bench/clip.h264
gst-launch-1.0 -q filesrc location="$(tools/clip.sh)" ! qtdemux ! h264parse config-interval=-1 \
  ! video/x-h264,stream-format=byte-stream,alignment=au ! filesink location="$clip"

load() { cut -d' ' -f1 /proc/loadavg; }
before=$(load)
common=(--sizes 1920x1080 --readers "1,4,8" --rounds "$rounds" --seconds 1)
"${with[@]}" "$bench" "${common[@]}" --transports lossless,unixfd,shm,pipewire --raw "$target/bench/elements.jsonl"
"$bench" --iceoryx2 "$iceoryx2" --transports engine,iceoryx2 "${common[@]}" --raw "$target/bench/iceoryx2.jsonl"
"$bench" --sharing "$clip" --rounds "$rounds" --seconds 2 --raw "$target/bench/sharing.jsonl"
after=$(load)

# The results change together, after all runs.
cp "$target"/bench/{elements,iceoryx2,sharing}.jsonl "$results/"
cat >"$results/conditions.json" <<END
{
  "date": "$(date +%F)",
  "machine": "$(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n1)",
  "load": [$before, $after],
  "gstreamer": "$gstreamer"
}
END
