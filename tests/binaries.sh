#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Run the workspace's test binaries one after another, as `cargo test` does, for a selection of packages.
#
#   tests/binaries.sh [--except] FOLDER... [-- COMMAND...]
#
# Runs the packages in these folders, or with --except all others. COMMAND, if given, runs each binary. NOT lists names of
# test binaries to leave out, SKIP lists tests to leave out as BINARY:FILTER. At least four tests run at once, unless
# RUST_TEST_THREADS says otherwise.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
cd "$repo"
selection=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  selection+=("$1")
  shift
done
[ $# = 0 ] || shift
[ ${#selection[@]} -gt 0 ] || { sed -n '3,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 2; }

# The whole workspace is built, because a part of it has other features and would be built again.
list=$(cargo test --workspace --locked --no-run --message-format=json | python3 -c '
import json, os, sys
omit = os.environ.get("NOT", "").split()
folders = {os.path.realpath(folder) for folder in sys.argv[1:] if folder != "--except"}
for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable") and built["profile"]["test"] and built["target"]["name"] not in omit:
        folder = os.path.dirname(built["manifest_path"])
        if (os.path.realpath(folder) in folders) != ("--except" in sys.argv):
            print(folder, built["executable"], built["target"]["name"], sep="\t")' "${selection[@]}")

# Tests of several processes sleep most of the time: 18 s of CPU time in 80 s of `faults` with two threads.
threads=$(nproc)
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((threads > 4 ? threads : 4))}
failed=0
while IFS=$'\t' read -r folder program name; do
  [ -n "$program" ] || continue
  skip=()
  for item in ${SKIP:-}; do
    if [ "${item%%:*}" = "$name" ]; then skip+=(--skip "${item#*:}"); fi
  done
  echo "     Running ${program#"$repo"/}"
  # A binary that hangs must not stop the others.
  status=0
  (cd "$folder" && "$@" env CARGO_MANIFEST_DIR="$folder" timeout --kill-after=10 900 "$program" "${skip[@]}" </dev/null) || status=$?
  [ $status = 0 ] || failed=1
  [ $status -lt 124 ] || echo "FAIL $(basename "$program"): it hangs or was killed (status $status)"
done <<<"$list"
exit $failed
