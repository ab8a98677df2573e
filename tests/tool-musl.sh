#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the command frameshare for x86_64-unknown-linux-musl, where rustup gives that target, and tries the binary; tests
# the engine there, too, since the types of system calls differ between C libraries.
# shellcheck disable=SC2317,SC2329  # functions are called through `check`
set -euo pipefail
cd "$(dirname "$0")/.."
triple=x86_64-unknown-linux-musl
target=${CARGO_TARGET_DIR:-target}

if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$triple" ]; then
  command -v rustup >/dev/null || { echo "tool-musl: rustup, which brings the target $triple, is missing: https://rustup.rs" >&2 && exit 1; }
  rustup target add "$triple" || { echo "tool-musl: rustup refused the target $triple, as it says above" >&2 && exit 1; }
fi
cargo build --release --locked --package frameshare-tools --target "$triple"
tool=$PWD/$target/$triple/release/frameshare
[ "${target#/}" = "$target" ] || tool=$target/$triple/release/frameshare

work=$(mktemp -d)
publisher=
finish() {
  [ -z "$publisher" ] || kill "$publisher" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
# shellcheck source=tests/check.sh
. tests/check.sh

# Neither shared libraries nor an interpreter that loads them.
is_static() { ! readelf --wide --dynamic --program-headers "$tool" | grep -E 'NEEDED|INTERP'; }
# An empty root has no libraries at all.
runs_alone() { env --chdir="$work" XDG_RUNTIME_DIR="$work" "$tool" "$@"; }
observes() {
  runs_alone list | grep '^musl ' && runs_alone info musl && runs_alone snapshot musl musl.png &&
    runs_alone record musl musl.rec -n 5 && runs_alone play musl.rec again --fast && runs_alone top -b -n 1
}
# It says why it sees no GPU instead of failing.
without_gpu() { runs_alone doctor musl | grep -E '^[a-z]+ +gpu '; }
check tool-musl-static is_static
check tool-musl-version runs_alone --version
# Not through a function: the number would be that of a shell.
env --chdir="$work" XDG_RUNTIME_DIR="$work" "$tool" publish musl --size 64x48 >/dev/null &
publisher=$!
until runs_alone info musl >/dev/null 2>&1; do
  kill -0 "$publisher" || { echo "FAIL tool-musl-publish" && exit 1; }
  sleep 0.1
done
check tool-musl-observes observes
check tool-musl-without-gpu without_gpu
kill -INT "$publisher"
check tool-musl-publish wait "$publisher"
publisher=
check tool-musl-engine cargo test --locked --package frameshare --lib --test engine --target "$triple"
[ "$failed" = 0 ] && echo "$tool"
exit "$failed"
