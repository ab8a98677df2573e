#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Pack everything that tests/gpu/run needs on a GPU host without packages into .gpu/ of the checkout.
#
#   .gpu/gst-runtime.tar.gz    GStreamer 1.26 (make-runtime.sh)
#   .gpu/clips/                clips for the decoder
#   .gpu/lib/                  the plugin, libframeshare
#   .gpu/bin/                  the test programs
#   .gpu/python/               the Python package, as one module for every Python from 3.11 on
#   .gpu/commit                the commit that they were built from; "+ changes" if files differ from it
#
# All binaries are optimized and stripped. The bundle stays below 58 MB, since it may have to be uploaded for each call.
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
cd "$repo"
bundle=$repo/.gpu
limit=$((58 * 1000 * 1000))

fresh() { # the script and the shim have not changed since
  [ "$bundle/gst-runtime.tar.gz" -nt tests/gpu/make-runtime.sh ] &&
    [ "$bundle/gst-runtime.tar.gz" -nt tests/gpu/nvrtc-shim.c ] && [ -e "$bundle/clips/switch.h264" ]
}
if ! fresh; then
  rm -rf "$bundle/clips"
  tests/gpu/make-runtime.sh "$bundle"
fi
cp "$(tools/clip.sh)" "$bundle/clips/"

# The plugin, libframeshare, all programs of the packages under tests/gpu, the benchmark, and the comparison with
# GStreamer's elements.
mapfile -t packages < <(cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    if package["name"] in ("gst-plugin-frameshare", "frameshare-c", "frameshare-python", "frameshare-rivals", "frameshare-bench", "camera-ingest") or "/tests/gpu/" in package["manifest_path"]:
        print(package["name"])')
rm -rf "${bundle:?}"/{lib,bin,python}
mkdir -p "$bundle"/{lib,bin}
cargo build --release --locked "${packages[@]/#/--package=}" --message-format=json-render-diagnostics | python3 -c '
import json, sys
for line in sys.stdin:
    built = json.loads(line)
    if built.get("reason") == "compiler-artifact":
        for name in built["filenames"]:
            if built.get("executable") == name:
                print("bin", name, sep="\t")
            elif name.endswith(("/libgstframeshare.so", "/libframeshare_c.so", "/lib_frameshare.so")):
                print("lib", name, sep="\t")' |
  while IFS=$'\t' read -r folder file; do
    if [[ $file != *build-script* ]]; then strip -o "$bundle/$folder/$(basename "$file")" "$file"; fi
  done

# Programs in C++ for the suite c-library.
mv "$bundle/lib/libframeshare_c.so" "$bundle/lib/libframeshare.so.0"
for source in crates/frameshare-c/tests/c/cuda.cpp examples/c/cuda-exporter.cpp examples/c/cuda-consumer.cpp; do
  c++ -std=c++17 -O2 -static-libstdc++ -static-libgcc -Icrates/frameshare-c/include "$source" \
    "$bundle/lib/libframeshare.so.0" -ldl -o "$bundle/bin/c-$(basename "$source" .cpp)"
done

cp -r crates/frameshare-python/python "$bundle/"
find "$bundle/python" -name __pycache__ -prune -exec rm -rf {} +
mv "$bundle/lib/lib_frameshare.so" "$bundle/python/frameshare/_frameshare.abi3.so"
changes=$(git status --porcelain)
echo "$(git rev-parse HEAD)${changes:+ + changes}" >"$bundle/commit"

size=$(du -sb --apparent-size "$bundle" | cut -f1)
(cd "$bundle" && find . -type f -printf '%10s  %P\n' | sort -k2)
echo "bundle: $size bytes in $bundle"
[ "$size" -lt "$limit" ] || { echo "bundle: larger than $limit bytes" >&2 && exit 1; }
