#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Prints the folder that holds GStreamer's gst/cuda/gstcuda.h, of 1.24 or newer: the machine's own, or that of the root
# file system with 1.26 (see tests/rootfs.sh), for which it is fetched once into target/. Says why where there is none.
set -eu

for tool in pkg-config "${CC:-cc}"; do
    command -v "$tool" >/dev/null || { echo "there is no $tool here to read headers with" >&2 && exit 1; }
done
root=$(cd "$(dirname "$0")/../.." && pwd)
own=$(pkg-config --variable=includedir gstreamer-1.0 || echo /usr/include)/gstreamer-1.0
rootfs=$("$root/tests/rootfs.sh" path)
cache=$(mkdir -p "${CARGO_TARGET_DIR:-$root/target}" && cd "${CARGO_TARGET_DIR:-$root/target}" && pwd)/gstcuda-headers
include=$cache/usr/include/gstreamer-1.0

if [ -f "$own/gst/cuda/gstcudastream.h" ]; then
    include=$own
elif [ ! -f "$include/gst/cuda/gstcuda.h" ]; then
    reason=$("$root/tests/rootfs.sh" why-not)
    # Waits for a runtime that another process makes (its lock exists), but makes none.
    if [ -n "$reason" ] || [ ! -e "$rootfs.lock" ]; then
        echo "there are no headers of GStreamer's CUDA library here: install libgstreamer-plugins-bad1.0-dev 1.24 or newer, or run tests/rootfs.sh make" >&2
        exit 1
    fi
    scratch=$cache.$$
    trap 'rm -rf "$scratch"' EXIT
    mkdir "$scratch"
    # shellcheck disable=SC2016  # expanded by the inner shell
    (cd "$root" && tests/rootfs.sh run sh -euc 'cd "$1"
        apt-get download -q libgstreamer-plugins-bad1.0-dev || { apt-get update -q; apt-get download -q libgstreamer-plugins-bad1.0-dev; }
        dpkg-deb -x ./*.deb .' fetch "$scratch") >"$scratch/log" 2>&1 || {
        echo "the headers of GStreamer's CUDA library cannot be fetched: $(tail -n1 "$scratch/log")" >&2
        exit 1
    }
    mv -T "$scratch" "$cache" 2>/dev/null || [ -f "$include/gst/cuda/gstcuda.h" ]
fi
echo "$include"
