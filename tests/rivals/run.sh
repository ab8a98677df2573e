#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds and runs the comparison with a GStreamer that has the rivals: this machine's own from 1.24 on, else the one in the
# root file system that tests/rootfs.sh makes. Arguments are transports.
set -euo pipefail
cd "$(dirname "$0")/../.."
repo=$PWD
target=${CARGO_TARGET_DIR:-$PWD/target}
cargo build --release --locked --package frameshare-rivals --package gst-plugin-frameshare
mkdir -p "$target/rivals/plugins"
target=$(cd "$target" && pwd)
cp "$target/release/libgstframeshare.so" "$target/rivals/plugins/"
rivals=("$target/release/frameshare-rivals" --folder "$target/rivals" --plugins "$target/rivals/plugins")

if pkg-config --exists 'gstreamer-1.0 >= 1.24'; then
  exec "${rivals[@]}" "$@"
fi
why_not=$(tests/rootfs.sh why-not)
if [ -n "$why_not" ]; then
  echo "rivals: this machine's GStreamer is older than 1.24, so there is no unixfd to compare with, and $why_not" >&2
  exec "${rivals[@]}" "$@"
fi
tests/rootfs.sh make
exec "${rivals[@]}" --by "$repo/tests/rootfs.sh run" "$@"
