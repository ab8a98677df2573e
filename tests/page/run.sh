#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Run a part of the checks of the page in headless Chromium, with what is built first.
#
#   tests/page/run.sh test           the tests
#   tests/page/run.sh pictures       the pictures of the documents, docs/ingest-*.png, some 3 minutes
#   tests/page/run.sh bench          CPU of a site with 16 cameras, optimized
set -euo pipefail
cd "$(dirname "$0")"
CHROMIUM=${CHROMIUM:-$(command -v chromium || command -v google-chrome)}
export CHROMIUM
build() { cargo build --quiet --locked "$@"; }
# The file of versions names each package and its checksum; no install script runs.
npm ci --silent
case ${1:-} in
  test)
    build --package camera-ingest --bins --examples
    node --test --test-reporter=spec page.test.mjs
    ;;
  pictures)
    build --package camera-ingest --package rtsp-cameras
    ../../tools/clip.sh >/dev/null
    node pictures.mjs
    ;;
  bench)
    build --release --package camera-ingest
    ../../tools/clip.sh >/dev/null
    PROFILE=release node bench.mjs
    ;;
  *) sed -n 's/^#   //p' "$0" >&2 && exit 2 ;;
esac
