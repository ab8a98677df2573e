#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Compares the public interfaces of the crates that are published with those of the last release tag: `make semver`.
set -euo pipefail
cd "$(dirname "$0")/.."
crates=(frameshare-process frameshare-protocol frameshare-queue frameshare-core frameshare-cuda frameshare frameshare-http gst-cuda gst-plugin-frameshare)
tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || {
  echo "SKIP semver: there is no release tag yet (v0.1.0 or later), so there is nothing to compare with"
  exit 0
}
tools/setup.sh build semver
# It resolves dependencies anew: their newest versions may need a newer compiler than this one.
export CARGO_RESOLVER_INCOMPATIBLE_RUST_VERSIONS=fallback
cargo semver-checks --baseline-rev "$tag" "${crates[@]/#/--package=}"
echo "PASS semver: compatible with $tag as the version says"
