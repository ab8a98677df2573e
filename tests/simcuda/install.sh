#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Build the simulated driver and install it into a directory for LD_LIBRARY_PATH:
#
#   install.sh DIR [SYMBOL...]       writes DIR/libcuda.so.1 and DIR/libnvcuvid.so.1
#
# Each SYMBOL is removed, as in an older driver without it: `install.sh DIR cuCtxRecordEvent`.
# Environment: CARGO, CARGO_TARGET_DIR; SIMCUDA_LIBRARY, a built libsimcuda.so to install without a build.
set -eu

usage="usage: install.sh DIR [SYMBOL...]"
dir=${1:?$usage}
shift
here=$(cd "$(dirname "$0")" && pwd)
library=${SIMCUDA_LIBRARY:-}
if [ -z "$library" ]; then
    (cd "$here" && ${CARGO:-cargo} build --quiet --package simcuda)
    target=${CARGO_TARGET_DIR:-$here/../../target}
    library=$target/debug/libsimcuda.so
fi
mkdir -p "$dir"
# The file is replaced in one step: a program that has mapped the old file keeps it.
cp "$library" "$dir/.libcuda.$$"
for symbol in "$@"; do
    # Symbols are looked up by the hash of their name: a symbol that is renamed in place is not found under any name.
    grep -q "$symbol" "$dir/.libcuda.$$" || { echo "install.sh: symbol $symbol not found in $library" >&2; exit 1; }
    LC_ALL=C sed -i "s/\x00$symbol\x00/\x00_${symbol#?}\x00/g" "$dir/.libcuda.$$"
done
mv "$dir/.libcuda.$$" "$dir/libcuda.so.1"
# The same library replaces both.
ln -sf libcuda.so.1 "$dir/libnvcuvid.so.1"
