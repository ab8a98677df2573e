#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs the reduced host suite on kernels, one after the other, and prints each kernel's abilities and result.
#
#   tests/guests/each.sh LIST LOGS KERNEL...      LIST: as for tests/guests/suites
#
# The exit status is 1 after a failure. TIME (default 2700) limits each kernel's run in seconds; PARTS are those of tests/guests/suites.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
list=$1 logs=$2
shift 2
mkdir -p "$logs"
PARTS=${PARTS:-engine attacks elements}
failed=0

# Prints an ability as the doctor of frameshare found it: "present", or the fallback that this run used.
ability() { # LOG NAME FALLBACK
  local found
  found=$(sed -n "s/^doctor: .*$2[^:]*: \([a-z]*\).*/\1/p" "$1" | head -n1)
  case $found in
    yes) echo "  $2: present" ;;
    no) echo "  $2: missing, fallback used: $3" ;;
    *) echo "  $2: unknown: the doctor did not say" && return 1 ;;
  esac
}

abilities() { # LOG
  ability "$1" "memory files with seals" "none" &&
    ability "$1" futex_waitv "wake-ups through sockets" &&
    ability "$1" SO_PEERPIDFD "a pidfd from the process number, and the socket's end" &&
    ability "$1" SO_PASSRIGHTS "descriptors of peers are received and closed" &&
    grep '^  ' "$1"
}

for kernel in "$@"; do
  log=$logs/$kernel.log
  status=0
  start=$SECONDS
  # shellcheck disable=SC2086  # words
  TIME=${TIME:-2700} MODULES=fuse nice tests/guests/run "$kernel" tests/guests/suites "$list" $PARTS >"$log" 2>&1 || status=$?
  version=$(sed -n 's/^kernel //p' "$log" | head -n1)
  echo "${version:-$kernel}"
  abilities "$log" || status=${status/#0/1}
  passed=$(grep -acE '^(test .* \.\.\. ok|PASS )' "$log")
  skipped=$(grep -acE '^SKIP ' "$log")
  if [ "$status" = 0 ]; then
    echo "VERSION $kernel ${version%%-*}"
    echo "PASS guest-$kernel: $passed tests, $skipped skipped, $((SECONDS - start)) s"
  else
    failed=1
    echo "FAIL guest-$kernel: status $status, $passed tests passed, $skipped skipped; see $log"
    grep -aE '^(test .* \.\.\. FAILED|FAIL )' "$log"
  fi
done
exit "$failed"
