#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Fuzz every target in turn, one process at a time, and add what is new and worth keeping to corpus/.
#
#   tests/fuzz/run.sh [SECONDS] [TARGET...]      SECONDS for each target, 60 by default
#
# Needs cargo-fuzz (cargo install cargo-fuzz --locked) and works with stable Rust. An input that finds something is left
# in artifacts/TARGET; `cargo fuzz run TARGET FILE` runs it again. Inputs are limited to small sizes, since the corpus is
# part of `make test`.
set -euo pipefail
cd "$(dirname "$0")"
export RUSTC_BOOTSTRAP=1
# Names and types that GStreamer never frees are no finding.
export ASAN_OPTIONS=detect_leaks=0
# A critical of GLib or GStreamer is a finding.
export G_DEBUG=fatal-criticals
seconds=${1:-60}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(to_exporter to_reader exporter reader metas events caps layouts)

# The programs are set aside, so that the tree can be worked on meanwhile.
cargo fuzz build --fuzz-dir .
mkdir -p work/bin
for target in "${targets[@]}"; do
  cp "${CARGO_TARGET_DIR:-target}/$(rustc -vV | sed -n 's/^host: //p')/release/$target" work/bin/
done
limits=(-max_len=768 -timeout=20 -rss_limit_mb=2048)
found=()
for target in "${targets[@]}"; do
  mkdir -p "work/$target" "corpus/$target" "artifacts/$target"
  echo "=== $target"
  if ! "work/bin/$target" "work/$target" "corpus/$target" "${limits[@]}" -max_total_time="$seconds" -print_final_stats=1 \
    -artifact_prefix="artifacts/$target/" >"work/$target.log" 2>&1; then
    found+=("$target")
    grep -E '^(==|SUMMARY|ERROR)|panicked|CRITICAL|Test unit' "work/$target.log" || true
  fi
  grep -E '^(#[0-9]+.*DONE|stat::(number|average|peak))' "work/$target.log" || true
  # The smallest inputs that reach what all together reach, some 15 KB of each target.
  rm -rf "work/$target.min" && mkdir "work/$target.min"
  "work/bin/$target" -merge=1 "${limits[@]}" "work/$target.min" "corpus/$target" "work/$target" \
    >"work/$target.merge.log" 2>&1 || true
  if ls "work/$target.min"/* >/dev/null 2>&1; then
    # Any of them, as their names are sums; what has found something stays.
    find "corpus/$target" -type f ! -name 'found-*' -delete
    find "work/$target.min" -type f ! -name 'found-*' -printf '%f %s %p\n' | sort |
      awk '{ total += $2 } total <= 14000 && NR <= 100 { print $3 }' | xargs cp -t "corpus/$target"
  fi
done
[ ${#found[@]} = 0 ] || { echo "found something: ${found[*]} (see artifacts/)" >&2 && exit 1; }
