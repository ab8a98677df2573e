#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Everything that `make test` checks, part by part. A part that fails does not stop the others; the last line counts.
#
# Counted are the summaries of cargo's test binaries, and from anything else lines that begin with "PASS name" or
# "FAIL name", and each "SKIP name: reason". Rust tests print that past the harness's capture, so that a skip is seen, which
# may be in the middle of a line of the harness's own.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
logs=$work/logs
mkdir "$logs"

part() { # NAME COMMAND...
  local name=$1 begin=$SECONDS
  shift
  echo "=== $name"
  if ! "$@" 2>&1 </dev/null | tee "$logs/$name"; then
    echo "$name" >>"$work/failed"
    grep -qE '^FAIL |[1-9][0-9]* failed;' "$logs/$name" || echo "FAIL $name: it did not get as far as a test" | tee -a "$logs/$name"
  fi
  echo "=== $name: $((SECONDS - begin)) s"
}

skip() { echo "SKIP $1: $2"; }

# The second GStreamer, where it is wanted and can be had. It is made beside what is checked and built first, since that
# is mostly waiting for a mirror; no test runs beside it.
old_gstreamer=$(pkg-config --exists 'gstreamer-1.0 < 1.24' && echo yes)
why_not=$(tests/rootfs.sh why-not)
if [ -n "$old_gstreamer" ] && [ -z "$why_not" ]; then
  tests/rootfs.sh make >/dev/null 2>&1 </dev/null &
fi
# Of `make build`.
plugins=${CARGO_TARGET_DIR:-target}/gstreamer-1.0
gstreamer_1_26() {
  if [ -z "$old_gstreamer" ]; then
    skip gstreamer-1.26 "this machine's own GStreamer is 1.24 or newer, and the tests above ran with it"
  elif [ -n "$why_not" ]; then
    skip gstreamer-1.26 "$why_not"
  else
    local status=0
    tests/rootfs.sh tests plugins/frameshare tests || status=1
    tests/rootfs.sh run tests/recipes.py "$plugins" live frame-info || status=1
    return $status
  fi
}
# GStreamer's own elements on the simulated driver: what runs there is a test of ours only if these do. Then ours.
simulated_gpu() {
  local driver enter=()
  tests/simcuda/install.sh "${CARGO_TARGET_DIR:-target}/simcuda" || return
  driver=$(cd "${CARGO_TARGET_DIR:-target}/simcuda" && pwd)
  if [ -n "$old_gstreamer" ]; then
    [ -z "$why_not" ] || { skip simulated-gpu "$why_not" && return; }
    enter=(tests/rootfs.sh run)
  fi
  "${enter[@]}" tests/simcuda/gstreamer.sh "$driver"
  local status=$?
  export LD_LIBRARY_PATH=$driver
  if [ -n "$old_gstreamer" ]; then
    SIMCUDA_DEVICES=2 tests/rootfs.sh tests crates/gst-cuda plugins/frameshare tests/gpu/gstreamer || status=1
  else
    SIMCUDA_DEVICES=2 tests/binaries.sh crates/gst-cuda plugins/frameshare tests/gpu/gstreamer || status=1
  fi
  return $status
}

build() {
  # The first leaves out the Python module, which tests/programs needs.
  cargo test --workspace --locked --no-run && cargo build --workspace --locked --lib --examples
}

# Most tests sleep most of the time: the suites of the simulated driver run beside the rest.
workspace() {
  local beside=(tests/gpu tests/gpu/engine tests/gpu/gstreamer tests/gpu/harness tests/programs tests/simcuda examples/demo) other status=0
  tests/binaries.sh "${beside[@]}" >"$work/beside" 2>&1 </dev/null &
  other=$!
  tests/binaries.sh --except "${beside[@]}" || status=1
  wait "$other" || status=1
  cat "$work/beside"
  cargo test --workspace --locked --doc --no-fail-fast || status=1
  return $status
}

# Optimized, as meson, `make demo` and the recipes want it.
release() {
  make --no-print-directory build &&
    cargo build --release --locked --package frameshare-c --package frameshare-tools
}

# The engine's decisions from seeds: from a fixed one, and from a new one, which is printed.
simulate() {
  local target=${CARGO_TARGET_DIR:-target} status=0
  simulate_seconds fixed-seed 50 --seed 1 || status=1
  simulate_seconds new-seed 10 || status=1
  return $status
}
simulate_seconds() { # NAME SECONDS OPTION...
  if "$target/debug/simulate" seconds "${@:2}" --output "$target"; then echo "PASS simulate/$1"; else echo "FAIL simulate/$1" && return 1; fi
}

# Compilation that no test of the workspace needs, and the simulator, which needs nothing but a core, run beside these
# tests, at the lowest priority: they use the time in which the tests sleep, and delay none.
low_priority() {
  renice --priority 19 --pid "$BASHPID" >/dev/null
  part loom make --no-print-directory loom
  part interface tools/interface.py check
  part release release
  part wheel tests/python.sh build
  part simulate simulate
}
# As a user does it, with the results of the builds.
use() {
  part install tests/install.sh
  part demo make --no-print-directory demo LOOPS=1
  part ingest tests/ingest.sh # `make ingest`, built for the tests above
  part recipes tests/recipes.py "$plugins"
  part recordings tests/recordings.py "$plugins"
}

part lint make --no-print-directory lint
part build build
wait
# The programs of the workspace's tests serve the Python package's, too.
export FRAMESHARE_IS_BUILT=yes
low_priority >"$work/low-priority" 2>&1 </dev/null &
part workspace workspace
wait
cat "$work/low-priority"
use >"$work/use" 2>&1 </dev/null &
part python make --no-print-directory test-python >"$work/python" 2>&1 &
part simulated-gpu simulated_gpu >"$work/simulated" 2>&1 &
part gstreamer-1.26 gstreamer_1_26
wait
cat "$work/use" "$work/python" "$work/simulated"

cat "$logs"/* | awk '
  /test result: / { for (i = 2; i <= NF; i++) { if ($i == "passed;") passed += $(i - 1); if ($i == "failed;") failed += $(i - 1); if ($i == "ignored;") skipped += $(i - 1) } }
  /^PASS / { passed++ }
  /^FAIL / { failed++ }
  /SKIP [^ ]+: / { skipped++ }
  END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }'
if [ -e "$work/failed" ]; then
  # Once more, since what failed is far above.
  cat "$logs"/* | grep -aE '^FAIL |^test .* \.\.\. FAILED$|panicked at '
  echo "failed: $(paste -sd ' ' "$work/failed")" >&2
  exit 1
fi
