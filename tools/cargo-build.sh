#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# For meson.build: build PACKAGES optimised with CARGO in TARGET_DIR, and copy those of their files that OUTPUTS name.
#
#   tools/cargo-build.sh CARGO SOURCE_DIR TARGET_DIR PACKAGE,... OUTPUT[=FILE]...  FILE is the name that cargo gives it
#
# Cargo selects the features of common dependencies by the packages of a call. Calls with the same packages share
# everything that was built; calls with one of them each would build the engine again.
set -euo pipefail
cargo=$1 source=$2 target=$3
IFS=, read -ra packages <<<"$4"
shift 4
"$cargo" build --release --locked --manifest-path "$source/Cargo.toml" --target-dir "$target" "${packages[@]/#/--package=}"
for output in "$@"; do
  file=$(basename "${output#*=}")
  cp --update "$target/release/$file" "${output%%=*}"
done
