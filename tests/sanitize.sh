#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The engine and the plugin under AddressSanitizer, the engine under ThreadSanitizer (`make sanitize`).
#
# Works with stable Rust. The standard library is built along, so that the sanitizers see its locks and channels.
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}
export RUSTC_BOOTSTRAP=1

under() { # SANITIZER CARGO-TEST-ARGUMENTS...
  local sanitizer=$1
  shift
  echo "=== $sanitizer: $*"
  # Through libc, so that they see memory that is mapped, unmapped and mapped again.
  RUSTFLAGS="-Zsanitizer=$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer --cfg=rustix_use_libc" CARGO_TARGET_DIR="$target/$sanitizer" \
    cargo test --locked -Zbuild-std --target "$host" "$@"
}

# Memory that GStreamer keeps until exit is no leak of this project; the engine's tests are checked for leaks too.
# Some tests fork children that start threads.
export TSAN_OPTIONS=halt_on_error=1:die_after_fork=0
# The examples are programs that cargo would build anew.
examples=(--skip export_and_read_every_frame --skip published_behind_any_stream)
under address -p frameshare-protocol -p frameshare-queue -p frameshare-core -p frameshare --lib --tests -- "${examples[@]}"
ASAN_OPTIONS=detect_leaks=0 under address -p gst-plugin-frameshare --lib --tests
# Tests that load the plugin into another program are skipped.
ASAN_OPTIONS=detect_leaks=0 under address -p frameshare-tests --test corpus
# Freed memory is not kept for long: the exporter's memory is compared before and after.
counted=detect_leaks=0:quarantine_size_mb=1
ASAN_OPTIONS=$counted under address -p frameshare-tests --test hostile -- --skip source_ --skip sink_ --skip exporters_stop
# Skipped as well: a process with a limited address space has no room for the sanitizer's.
# So is a reader whose prctl(2) fails: assertions of the standard library forbid that.
faults=(sink_admits_allowed killed_exporter_is_error readers_wait_for_stopped abstract_reader_needs elements_share_over_abstract
  foreign_exporter_in_shared_folder users_of_shared_folder live_socket_of_another_program overflow_user_is_refused_in
  forked_child_does_not_hide reader_out_of_memory streams_run_while_optional)
ASAN_OPTIONS=$counted under address -p frameshare-tests --test faults -- "${faults[@]/#/--skip=}"
ASAN_OPTIONS=$counted under address -p frameshare-tests --test lifecycle -- cycles:: of_one_process_do_not_mix \
  restarts::reader_keeps restarts::frames_of restarts::readers_go_on
under thread -p frameshare-queue -p frameshare --lib --tests -- "${examples[@]}"
