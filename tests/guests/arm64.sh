#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The reduced host suite on arm64, with pages of 4 and 16 KiB: `make test-arm64`.
#
#   tests/guests/arm64.sh [KERNEL...]     arm64 and arm64-16k, unless some are named
#
# Cross-built here against Debian 13, and run there in a virtual machine: the engine and the elements. Attacks do not depend on
# the processor (PARTS="engine attacks elements" runs them, too). Logs are written to target/guests.
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
cd "$repo"
triple=aarch64-unknown-linux-gnu
if [ "$(id -u)" != 0 ]; then
  echo "SKIP arm64: a guest reads this machine's files as root, and this is not root"
  exit 0
fi
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$triple" ]; then
  command -v rustup >/dev/null || { echo "arm64: rustup, which brings the target $triple, is missing: https://rustup.rs" >&2 && exit 1; }
  rustup target add "$triple" || { echo "arm64: rustup refused the target $triple, as it says above" >&2 && exit 1; }
fi
tools/setup.sh build guests arm64
root=$(tests/guests/arm64-root.sh)
# The guest sees this folder only.
export CARGO_TARGET_DIR=$repo/target
list=target/guests/tests-arm64.tsv
mkdir -p target/guests

# Without debugging information: the guest reads these files over a slow file system.
build() {
  CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C link-arg=--sysroot=$root" \
    PKG_CONFIG_ALLOW_CROSS=1 PKG_CONFIG_SYSROOT_DIR=$root \
    PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig:$root/usr/share/pkgconfig \
    cargo "$@" --locked --target "$triple"
}
build build --package gst-plugin-frameshare --package frameshare-tools --package frameshare-tests
build test --package frameshare-cuda --package frameshare-queue --package frameshare --package frameshare-tests --package gst-plugin-frameshare \
  --no-run --message-format=json | tests/guests/list.py >"$list"

[ $# -gt 0 ] || set -- arm64 arm64-16k
PLUGIN=$repo/target/$triple/debug/libgstframeshare.so PARTS=${PARTS:-engine elements} PASS=PLUGIN exec tests/guests/each.sh "$list" target/guests "$@"
