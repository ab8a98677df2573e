#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# For meson.build: build PACKAGE optimised with CARGO in TARGET_DIR, and copy those of its files that OUTPUTS name.
#
#   tools/cargo-build.sh CARGO SOURCE_DIR TARGET_DIR PACKAGE OUTPUT[=FILE]...      FILE is the name that cargo gives it
set -euo pipefail
cargo=$1 source=$2 target=$3 package=$4
shift 4
"$cargo" build --release --locked --manifest-path "$source/Cargo.toml" --target-dir "$target" --package "$package"
for output in "$@"; do
  file=$(basename "${output#*=}")
  cp --update "$target/release/$file" "${output%%=*}"
done
