#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Prints the folder that holds NVIDIA's cuda.h, fetching it once from PyPI into target/.
set -eu

version=13.5.37
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${CARGO_TARGET_DIR:-$root/target}/cuda-headers
include=$cache/$version/nvidia/cu13/include

if [ ! -f "$include/cuda.h" ]; then
    mkdir -p "$cache"
    # Tests run side by side: each unpacks for itself, and the last rename wins or loses without harm.
    scratch=$(mktemp -d "$cache/fetch.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$scratch" "nvidia-cuda-runtime==$version" >&2 || {
        echo "cuda-headers.sh: cannot fetch nvidia-cuda-runtime $version from PyPI (python3 with pip is needed)" >&2
        exit 1
    }
    mkdir "$scratch/unpacked"
    python3 -m zipfile -e "$scratch"/*.whl "$scratch/unpacked"
    mv -T "$scratch/unpacked" "$cache/$version" 2>/dev/null || [ -f "$include/cuda.h" ] || {
        echo "cuda-headers.sh: nvidia-cuda-runtime $version does not hold nvidia/cu13/include/cuda.h" >&2
        exit 1
    }
fi
echo "$include"
