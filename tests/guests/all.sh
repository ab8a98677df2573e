#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The reduced host suite on kernels of Debian and Ubuntu: `make test-guests`.
#
#   tests/guests/all.sh [KERNEL...]       all that tests/guests/kernels.sh lists, unless some are named
#
# Logs are written to target/guests. A table of features, and each kernel's result, are printed at the end.
set -uo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
cd "$repo" || exit
if [ "$(id -u)" != 0 ]; then
  echo "SKIP guests: a guest reads this machine's files as root, and this is not root"
  exit 0
fi
tools/setup.sh build play guests || exit
logs=${CARGO_TARGET_DIR:-$repo/target}/guests
list=$logs/tests.tsv
mkdir -p "$logs"
cargo test --workspace --locked --no-run --message-format=json | python3 -c '
import json, os, sys
for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable") and built["profile"]["test"]:
        folder = os.path.relpath(os.path.dirname(built["manifest_path"]))
        print(folder, built["target"]["name"], built["executable"], sep="\t")' >"$list" || exit
[ -s "$list" ] || exit

[ $# -gt 0 ] || mapfile -t kernels < <(tests/guests/kernels.sh list)
failed=0
for kernel in "${@:-${kernels[@]}}"; do
  status=0
  TIME=${TIME:-2700} tests/guests/run "$kernel" tests/guests/suites "$list" >"$logs/$kernel.log" 2>&1 || status=$?
  feature() { sed -n "s/^doctor: .*$1[^:]*: \(.*\)/\1/p" "$logs/$kernel.log" | head -n1; } # PREFIX
  version=$(sed -n 's/^kernel //p' "$logs/$kernel.log" | head -n1)
  printf '%s: memory files with seals %s, futex_waitv %s, SO_PEERPIDFD %s, SO_PASSRIGHTS %s, /dev/udmabuf %s\n' \
    "${version:-$kernel}" "$(feature 'memory files with seals')" "$(feature futex_waitv)" "$(feature SO_PEERPIDFD)" \
    "$(feature SO_PASSRIGHTS)" "$(feature '.dev.udmabuf')"
  passed=$(grep -cE '^(test .* \.\.\. ok|PASS )' "$logs/$kernel.log")
  if [ "$status" = 0 ]; then
    echo "PASS guest-$kernel: $passed tests"
  else
    failed=1
    echo "FAIL guest-$kernel: status $status, $passed tests passed; see $logs/$kernel.log"
    grep -E '^(test .* \.\.\. FAILED|FAIL )' "$logs/$kernel.log"
  fi
done
exit "$failed"
