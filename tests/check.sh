# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154  # `failed` is read, and `work` set, by those scripts
# Sourced by tests that are scripts: `check` runs a command and prints PASS or FAIL, which tests/all.sh counts; `failed` is 1
# after a failure. They set `work`, a folder for the output.
failed=0

check() { # NAME COMMAND...
  local name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    echo "PASS $name"
  else
    failed=1
    echo "FAIL $name: $*"
    tail -n 20 "$work/log"
  fi
}
