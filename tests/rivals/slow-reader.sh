#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Cost of a reader at one frame per second for two lossless readers at full rate: their latencies from
# publication to delivery, with and without the slow reader, in five rounds of 5,000 frames. Needs an idle
# machine. PEER is the built program, for a machine that cannot build.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -z "${PEER:-}" ]; then
  cargo build --release --quiet --locked --package frameshare-tests --bin peer
  PEER=${CARGO_TARGET_DIR:-target}/release/peer
fi
peer=$(realpath "$PEER")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export XDG_RUNTIME_DIR=$folder

run() { # SLOW
  "$peer" export --stream s --frames 5000 --fps 1000 --size 3110400 --readers $((2 + $1)) >exporter &
  sleep 0.2
  for reader in 1 2; do
    "$peer" read --stream s --policy lossless --quiet yes --latency yes >"reader$reader" &
  done
  [ "$1" = 0 ] || "$peer" read --stream s --sleep-ms 1000 --quiet yes >slow &
  wait
  tail -qn1 reader1 reader2 | grep -oE '"(lost|p50_us|p99_us)":[0-9]+' | paste -sd' '
}

for round in 1 2 3 4 5; do
  echo "round $round without: $(run 0)"
  echo "round $round with:    $(run 1)"
done
