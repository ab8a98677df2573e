#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The reduced host suite on kernels of Debian and Ubuntu: `make test-guests`.
#
#   tests/guests/all.sh [KERNEL...]       all that tests/guests/kernels.sh lists, unless some are named
#
# Logs are written to target/guests. Each kernel's abilities and result are printed.
set -uo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
cd "$repo" || exit
if [ "$(id -u)" != 0 ]; then
  echo "SKIP guests: a guest reads this machine's files as root, and this is not root"
  exit 0
fi
tools/setup.sh build play guests || exit
logs=${CARGO_TARGET_DIR:-$repo/target}/guests
list=$logs/tests.tsv
mkdir -p "$logs"
packages=(--package frameshare --package frameshare-queue --package frameshare-tests --package gst-plugin-frameshare)
cargo build --locked "${packages[@]}" --package frameshare-tools &&
  cargo test --locked "${packages[@]}" --no-run --message-format=json | tests/guests/list.py >"$list" || exit

mapfile -t kernels < <(tests/guests/kernels.sh list)
[ $# = 0 ] || kernels=("$@")
exec tests/guests/each.sh "$list" "$logs" "${kernels[@]}"
