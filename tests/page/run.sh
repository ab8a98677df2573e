#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Run a part of the checks of the page in headless Chromium, with what is built first.
#
#   tests/page/run.sh test           the tests
#   tests/page/run.sh pictures       the pictures of the documents, docs/ingest-*.png
set -euo pipefail
cd "$(dirname "$0")"
CHROMIUM=${CHROMIUM:-$(command -v chromium || command -v google-chrome)}
export CHROMIUM
cargo build --quiet --locked --package camera-ingest --bins --examples
# The file of versions names each package and its checksum; no install script runs.
npm ci --silent
case ${1:-} in
  test) node --test --test-reporter=spec page.test.mjs ;;
  pictures) node pictures.mjs ;;
  *) sed -n 's/^#   //p' "$0" >&2 && exit 2 ;;
esac
