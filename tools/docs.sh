#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the documentation site into target/site, after `make build`: `make docs` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked --package frameshare --package gst-plugin-frameshare
tests/python.sh run crates/frameshare-python/requirements/docs.txt \
  pdoc --output-directory "$target/python-reference" frameshare
GST_PLUGIN_PATH=$target/gstreamer-1.0 /usr/bin/python3 tools/site.py "$target/site"
