#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Build the simulated driver and put it into a directory, to be found by LD_LIBRARY_PATH:
#
#   install.sh DIR [SYMBOL...]       writes DIR/libcuda.so.1 and DIR/libnvcuvid.so.1
#
# SYMBOLs are left out, as in an older driver that does not have them: `install.sh DIR cuCtxRecordEvent`.
# Environment: CARGO, CARGO_TARGET_DIR; SIMCUDA_LIBRARY, a built libsimcuda.so, to build nothing.
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
# Into place in one step: a program that has the old one mapped keeps it.
cp "$library" "$dir/.libcuda.$$"
for symbol in "$@"; do
    # The tables of symbols are found by the hash of the name: one that is spelled differently is not found at all.
    grep -q "$symbol" "$dir/.libcuda.$$" || { echo "install.sh: no symbol $symbol" >&2; exit 1; }
    LC_ALL=C sed -i "s/\x00$symbol\x00/\x00_${symbol#?}\x00/g" "$dir/.libcuda.$$"
done
mv "$dir/.libcuda.$$" "$dir/libcuda.so.1"
# One library stands in for both.
ln -sf libcuda.so.1 "$dir/libnvcuvid.so.1"
