#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Checks the dependencies against the security advisories of RustSec: `make audit`.
#   ADVISORIES=newest  checks against the newest ones instead of the pinned ones
#   ADVISORIES=FOLDER  checks against those of this clone of RustSec's database
set -euo pipefail
cd "$(dirname "$0")/.."
url=https://github.com/RustSec/advisory-db
# A commit of 2026-08-21, so that the same sources give the same result. The weekly workflow checks the newest ones.
pinned=bf5c0d245a92671908518d7e765914d437954ed6

folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/advisory-dbs
database=$folder/advisory-db-3157b0e258782691 # the name that cargo-deny gives the clone of that address
case ${ADVISORIES:-} in
  '') from=$url wanted=$pinned ;;
  newest) from=$url wanted=HEAD ;;
  *) from=$(realpath "$ADVISORIES") wanted=HEAD ;;
esac
git init -q "$database"
if ! git -C "$database" cat-file -e "$wanted^{commit}" 2>/dev/null || [ "$wanted" = HEAD ]; then
  git -C "$database" fetch -q --depth 1 "$from" "$wanted" || {
    [ -z "${ADVISORIES:-}" ] || exit 1
    echo "SKIP advisories: $url cannot be reached; ADVISORIES=FOLDER names a clone of it"
    exit 0
  }
  wanted=FETCH_HEAD
fi
git -C "$database" checkout -q --detach "$wanted"
# The section on advisories is the last one of deny.toml.
{ cat deny.toml && printf 'db-path = "%s"\n' "$folder"; } >"$folder/deny.toml"
cargo deny --offline --config "$folder/deny.toml" --all-features check --hide-inclusion-graph advisories
