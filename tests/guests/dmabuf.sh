#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# dma-bufs on other kernels, with devices that need no hardware: `make test-dmabuf`.
#
#   tests/guests/dmabuf.sh [KERNEL...]       5.15, whose dma-bufs have no sync files, the same without a fix of udmabuf, and 6.8, unless
#                                            some are named
#
# Logs are written to target/guests.
set -uo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
cd "$repo" || exit
if [ "$(id -u)" != 0 ]; then
  echo "SKIP guests: a guest reads this machine's files as root, and this is not root"
  exit 0
fi
tools/setup.sh build play guests || exit
target=${CARGO_TARGET_DIR:-$repo/target}
logs=$target/guests
mkdir -p "$logs"
cargo build --locked -p gst-plugin-frameshare -p frameshare-tests || exit
mapfile -t tests < <(
  for test in "frameshare --test dma_buf" "gst-plugin-frameshare --test crossing" "frameshare-tests --test faults"; do
    # shellcheck disable=SC2086  # words
    cargo test --locked --no-run -p $test 2>&1 | sed -n 's/.*Executable.*(\(.*\))/\1/p'
  done | xargs -r realpath
)
[ ${#tests[@]} = 3 ] || { echo "guests: the tests cannot be built" && exit 1; }
export PLUGIN=$target/debug/libgstframeshare.so
[ $# -gt 0 ] || set -- 5.15 5.15-unfixed 6.8
failed=0
for kernel in "$@"; do
  status=0
  PASS=PLUGIN TIME=${TIME:-900} tests/guests/run "$kernel" tests/guests/dmabuf "${tests[@]}" >"$logs/dmabuf-$kernel.log" 2>&1 || status=$?
  grep -E '^(SKIP|FAIL) ' "$logs/dmabuf-$kernel.log"
  passed=$(grep -cE '^(test .* \.\.\. ok|PASS )' "$logs/dmabuf-$kernel.log")
  skipped=$(grep -c '^SKIP ' "$logs/dmabuf-$kernel.log")
  if [ "$status" = 0 ]; then
    echo "PASS dmabuf-$kernel: $passed tests, $skipped skipped"
  else
    failed=1
    echo "FAIL dmabuf-$kernel: status $status, $passed tests passed; see $logs/dmabuf-$kernel.log"
  fi
done
exit "$failed"
