#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# libframeshare from an installation: installs into an empty folder by the command of docs/c.md, follows that page, and
# builds the installed examples with pkg-config, CMake and meson. tests/install.sh runs it.
#
#   tests/c-library.sh BUILD      BUILD is a build folder of meson, whose parts are built already
# shellcheck disable=SC2317,SC2329  # functions are called through `check`
set -uo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd) || exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/check.sh
. "$repo/tests/check.sh"
skip() { echo "SKIP $1: $2"; }

# The user of the guide, whose tools stay where they are.
export CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup}
export HOME=$work/home XDG_RUNTIME_DIR=$work/run GST_REGISTRY=$work/registry.bin
prefix=$HOME/frameshare
mkdir -p "$HOME" "$work/guide"
mkdir -m 700 "$XDG_RUNTIME_DIR"

# A block of the guide: its text, by language and name.
block() { # LANGUAGE NAME
  sed -n "/^\`\`\`$1 [a-z]*=$2\$/,/^\`\`\`\$/{/^\`\`\`/!p}" "$repo/docs/c.md" >"$work/block" && [ -s "$work/block" ] &&
    cat "$work/block"
}
follow() { # NAME: runs the commands of a block in the folder of the guide
  local commands
  commands=$(block sh "$1") && (cd "$work/guide" && eval "$commands")
}
# The first block says where the libraries are, to all that follow.
install_it() {
  local commands
  commands=$(block sh install) && cd "$repo" && export BUILD=$build && eval "$commands" && cd "$work/guide" && unset BUILD
}
install_it >"$work/install" 2>&1 </dev/null
check c-install test -e "$prefix/lib/libframeshare.so.0" -a -e "$prefix/lib/libframeshare.a" -a \
  -e "$prefix/include/frameshare.hpp"
[ "$failed" = 0 ] || { tail -n 20 "$work/install" && exit 1; }

# Without GStreamer. Everything is built already: only the configuration differs.
without_gstreamer() {
  local commands
  commands=$(block sh alone) && cd "$repo" || return
  export PKG_CONFIG_LIBDIR=$work/nothing
  # Negative control: with the plugin, GStreamer is missing.
  ! meson setup "$work/with" || return
  commands=${commands//setup build/setup $work/build --prefix=$work/alone --libdir=lib}
  commands=${commands//-C build/-C $work/build}
  mkdir -p "$work/build" && ln -sfn "$(readlink -f "$build/cargo")" "$work/build/cargo" && eval "$commands" || return
  [ -e "$work/alone/lib/libframeshare.so" ] && [ ! -e "$work/alone/lib/gstreamer-1.0" ]
}
check c-install-without-gstreamer eval '(without_gstreamer)'

names_and_symbols() {
  [ "$(readlink "$prefix/lib/libframeshare.so")" = libframeshare.so.0 ] || return
  readelf -d "$prefix/lib/libframeshare.so" | grep -F 'soname: [libframeshare.so.0]' || return
  nm -D --defined-only --format=posix "$prefix/lib/libframeshare.so" | cut -d' ' -f1 | LC_ALL=C sort >"$work/symbols"
  grep -v '^#' "$repo/crates/frameshare-c/libframeshare.symbols" | diff - "$work/symbols" || return
  readelf -d "$prefix/lib/libframeshare.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' >"$work/needed"
  ! grep -vE '^(libc\.so\.6|libgcc_s\.so\.1|libm\.so\.6|ld-linux.*)$' "$work/needed"
}
check c-names-and-symbols names_and_symbols
version_is_that_of_the_workspace() {
  [ "$(pkg-config --modversion frameshare)" = "$(sed -n '0,/^version = /s/^version = "\(.*\)"/\1/p' "$repo/Cargo.toml")" ]
}
check c-pkg-config version_is_that_of_the_workspace
# All names that rustc wants for a static library.
static_libraries() {
  local name
  for name in gcc_s util rt pthread m dl c; do
    [[ " $(pkg-config --static --libs frameshare) " == *" -l$name "* ]] || return
  done
}
check c-pkg-config-static static_libraries

# The guide. Its stream is on air while its programs read; GStreamer finds the elements that were installed with it.
export GST_PLUGIN_PATH=$prefix/lib/gstreamer-1.0
for program in brightness loop publish observe; do block c $program >"$work/guide/$program.c"; done
for program in consumer owning; do block cpp $program >"$work/guide/$program.cpp"; done
builds_the_guide() {
  follow build || return
  cd "$work/guide" || return
  local program flags
  read -ra flags <<<"-Wall -Wextra -Werror $(pkg-config --cflags --libs frameshare)"
  for program in brightness loop publish observe; do
    "${CC:-cc}" "$program.c" "${flags[@]}" -o "$program" || return
  done
  "${CXX:-c++}" -std=c++17 owning.cpp "${flags[@]}" -o owning &&
    "${CXX:-c++}" -std=c++17 -c consumer.cpp "${flags[@]}"
}
check c-guide-build builds_the_guide
# With a process group of its own, whose every process ends with it.
set -m
follow stream >"$work/stream" 2>&1 </dev/null &
on_air=$!
set +m
# A new registry of GStreamer takes long.
until [ -e "$XDG_RUNTIME_DIR/frameshare/cam0.sock" ] || ! kill -0 "$on_air" 2>/dev/null; do sleep 0.1; done
guide_runs() {
  follow run >"$work/brightness" || { cat "$work/stream" && return 1; }
  # 60 frames, of which none is missing that is not counted, and none of which is black or white.
  awk '{ sub(",", "", $2); if (NR > 1 && $2 != last + 1 + $3) bad = 1; last = $2; if ($6 <= 1 || $6 >= 254) bad = 1 }
    END { exit bad || NR != 60 }' "$work/brightness"
}
check c-guide-run guide_runs
observes_the_stream() { timeout 60 "$work/guide/observe" | grep -E "^[^ ]+: [1-9][0-9]* frames, "; }
check c-guide-observe observes_the_stream
check c-guide-loop timeout 60 "$work/guide/loop"
check c-guide-owning timeout 60 "$work/guide/owning"
kill -TERM -- "-$on_air"
wait "$on_air" 2>/dev/null
stream_ends() {
  local end=$((SECONDS + 10))
  while pgrep --pgroup "$on_air"; do [ "$SECONDS" -lt "$end" ] && sleep 0.1 || return; done
}
check c-guide-stream-ends stream_ends
published_to_gstreamer() {
  "$work/guide/publish" &
  local exporter=$!
  timeout 60 gst-launch-1.0 -q framesharesrc stream=cam1 connection-timeout=-1 policy=lossless ! filesink location="$work/rgb" || return
  wait "$exporter" && [ "$(stat -c %s "$work/rgb")" = $((60 * 640 * 480 * 3)) ] || return
  # Frame n consists of bytes n - 1.
  python3 - "$work/rgb" <<'P'
import sys
data = open(sys.argv[1], "rb").read()
size = 640 * 480 * 3
sys.exit(any(data[n * size : (n + 1) * size] != bytes([n]) * size for n in range(60)))
P
}
check c-guide-publish published_to_gstreamer
guide_examples() {
  follow examples >"$work/examples" || return
  cat "$work/examples"
  grep -qF '90 frames, 0 lost' "$work/examples" && grep -q '^age ' "$work/examples"
}
check c-guide-examples guide_examples

# The examples as they were installed, in each build system.
examples=$prefix/share/doc/frameshare/examples/c
by_make() { make -C "$examples" BUILD="$work/make" CFLAGS='-Wall -Wextra -Werror' CXXFLAGS='-Wall -Wextra -Werror'; }
by_cmake() { cmake -S "$examples" -B "$work/cmake" && cmake --build "$work/cmake"; }
by_meson() { meson setup "$work/meson" "$examples" && meson compile -C "$work/meson"; }
statically() { make -C "$examples" BUILD="$work/static" STATIC=1; }
# Every frame of another process, compared by number and checksum.
frames_cross() { # FOLDER
  local exporter
  timeout 60 "$1/exporter" cam3 100 0 >"$work/published" &
  exporter=$!
  timeout 60 "$1/reader" cam3 lossless sums >"$work/read" || return
  wait "$exporter" || return
  [ "$(grep -c '^frame ' "$work/published")" = 100 ] || return
  diff <(grep '^frame ' "$work/published") <(grep '^frame ' "$work/read")
}
for way in make cmake meson; do
  check "c-examples-$way" "by_$way"
  check "c-examples-$way-frames" frames_cross "$work/$way"
done
check c-examples-static statically
needs_no_library() { ! readelf -d "$work/static/reader" | grep -F libframeshare; }
check c-examples-static-alone needs_no_library
check c-examples-static-frames env -u LD_LIBRARY_PATH bash -c "$(declare -f frames_cross); work=$work; frames_cross $work/static"

# The reader's status after a kill of the exporter.
kill_is_reported() {
  local exporter reader status=0
  # The loop below begins before the reader's process has made its file: it must not find an older one.
  : >"$work/read-until-kill"
  "$work/make/exporter" cam4 1000000 100 >"$work/published-until-kill" &
  exporter=$!
  stdbuf -oL "$work/make/reader" cam4 lossless sums >"$work/read-until-kill" 2>"$work/errors" &
  reader=$!
  # Frames that it has not read when the exporter is killed may be lost.
  until [ "$(grep -c '^frame ' "$work/read-until-kill")" -ge 20 ]; do
    kill -0 "$exporter" && kill -0 "$reader" || return
    sleep 0.05
  done
  kill -KILL "$exporter"
  wait "$exporter"
  wait "$reader" || status=$?
  cat "$work/errors"
  [ "$status" = 3 ] && grep -qF 'exporter lost: connection to the exporter lost' "$work/errors" || return
  # All that was read was published so.
  grep '^frame ' "$work/read-until-kill" | head -n 20 | diff - <(head -n 20 "$work/published-until-kill")
}
check c-examples-killed kill_is_reported
clean_under_valgrind() {
  local exporter
  timeout 120 "$work/make/exporter" cam5 20 0 >"$work/published" &
  exporter=$!
  timeout 120 valgrind --quiet --leak-check=full --errors-for-leak-kinds=definite,indirect --error-exitcode=99 \
    --suppressions="$repo/crates/frameshare-c/tests/c/valgrind.supp" "$work/make/reader" cam5 lossless sums >"$work/read" || return
  wait "$exporter" && diff <(grep '^frame ' "$work/published") <(grep '^frame ' "$work/read")
}
if command -v valgrind >/dev/null; then
  check c-examples-valgrind clean_under_valgrind
else
  skip c-examples-valgrind "valgrind is missing"
fi

exit $failed
