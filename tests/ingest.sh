#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# `make ingest` shows its page and leaves nothing behind. The programs are those that cargo built for the tests.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fail() {
  echo "FAIL ingest: $1"
  tail -n 60 "$log"
  kill -KILL -- "-$group" 2>/dev/null
  exit 1
}
# Waits until a command succeeds.
until_true() { # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] && kill -0 "$group" 2>/dev/null || return 1
    sleep 0.5
  done
}

setsid make --no-print-directory ingest PROGRAMS="${CARGO_TARGET_DIR:-target}/debug" >"$log" 2>&1 </dev/null &
group=$!
until_true 240 grep -q '^supervisor: page at http://' "$log" || fail "no page"
address=$(sed -n 's/^supervisor: page at \(http:[^ ]*\).*/\1/p' "$log" | head -n 1)
page() { python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=20).read()' "$1"; }
page "$address" >>"$log" 2>&1 || fail "the page at $address does not answer"
for camera in cam0 cam1 cam2 cam3; do
  until_true 120 grep -q "^capture-$camera: $camera: running: " "$log" || fail "$camera is not received"
done
kill -INT -- "-$group"
wait "$group"
left() { pgrep -g "$group" || pgrep -s "$group"; }
for _ in $(seq 100); do
  left >/dev/null || break
  sleep 0.2
done
left >>"$log" && fail "processes are left behind"
echo "PASS ingest"
