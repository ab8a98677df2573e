#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs into an empty place the way a user and a distribution do, and has GStreamer find what lies there.
# shellcheck disable=SC2317,SC2329  # functions are called through `check`
set -uo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/check.sh
. "$repo/tests/check.sh"

# With a registry in that folder and no system plugins, so that nothing found elsewhere or earlier answers.
inspect() { # FOLDER WHAT
  env GST_REGISTRY="$1/registry.bin" GST_PLUGIN_SYSTEM_PATH= GST_PLUGIN_PATH="$1" gst-inspect-1.0 "$2"
}

# Kept, so that a second run of the tests has little to build, and built where the other parts build.
target=${CARGO_TARGET_DIR:-$repo/target}
build=$target/install
[ -L "$build/cargo" ] || rm -rf "$build/cargo"
mkdir -p "$build"
ln -sfn "$target" "$build/cargo"
prefix=$work/prefix
installed=$prefix/lib/gstreamer-1.0
setup() {
  if [ -d "$build/meson-info" ]; then set -- configure "$build"; else set -- setup "$build" "$repo"; fi
  meson "$@" --prefix="$prefix" --libdir=lib
}

check install-setup setup
check install-prefix meson install -C "$build"
check install-plugin test -f "$installed/libgstframeshare.so"
check install-licences test -f "$prefix/share/doc/frameshare/LICENSE-MIT"

# The command, which needs nothing but what every program of this system has, and finds streams.
tool=$prefix/bin/frameshare
needs_libc_alone() {
  readelf -d "$tool" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' >"$work/needed" && [ -s "$work/needed" ] || return
  ! grep -vE '^(libc\.so\.6|libgcc_s\.so\.1|libm\.so\.6|ld-linux.*)$' "$work/needed"
}
check install-tool-needs-libc-alone needs_libc_alone
check install-tool-runs env XDG_RUNTIME_DIR="$work" "$tool" list
check install-tool-completions test -s "$prefix/share/bash-completion/completions/frameshare.bash" \
  -a -s "$prefix/share/zsh/site-functions/_frameshare" \
  -a -s "$prefix/share/fish/vendor_completions.d/frameshare.fish"
# One for each command: those that the installed command lists.
man_pages() {
  local command pages=$prefix/share/man/man1
  [ -s "$pages/frameshare.1" ] || return
  for command in $("$tool" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    [ "$command" = help ] || [ -s "$pages/frameshare-$command.1" ] || { echo "no page for $command" && return 1; }
  done
}
check install-tool-man-pages man_pages
# All but those into the source tree.
links_lead_somewhere() {
  cd "$prefix/share/doc/frameshare" || return
  local file link broken=0 found=0
  while IFS=: read -r file link; do
    case $link in *://* | '#'* | *crates/* | *plugins/* | *examples/* | *tests | *tests/* | *tools/*) continue ;; esac
    found=$((found + 1))
    [ -e "$(dirname "$file")/${link%%#*}" ] || { echo "$file: $link" && broken=1; }
  done < <(grep -oE '\]\([^)]+\)' -r --include='*.md' . | sed 's/\](\(.*\))$/\1/')
  [ "$found" -gt 20 ] && [ "$broken" = 0 ]
}
check install-examples test -f "$prefix/share/doc/frameshare/docs/services/frameshare@.service"
check install-links links_lead_somewhere
check install-sink-found inspect "$installed" framesharesink
check install-src-found inspect "$installed" framesharesrc

# Negative control: without the installed folder nothing answers, so the two finds above are its doing. GStreamer looks
# into sub-folders too.
mkdir "$work/empty"
not_found() { ! inspect "$work/empty" framesharesink; }
check install-nothing-else-answers not_found

# Frames from one process to another through what was installed, with everything else from the system.
frames_cross() {
  export XDG_RUNTIME_DIR=$work GST_REGISTRY=$work/registry.bin GST_PLUGIN_PATH=$installed
  gst-inspect-1.0 framesharesink | grep -F "$installed/libgstframeshare.so" || return
  local picture="videotestsrc num-buffers=50 pattern=ball ! video/x-raw,format=NV12,width=320,height=240" exporter
  # shellcheck disable=SC2086  # pipelines are words
  gst-launch-1.0 -q $picture ! filesink location="$work/made" || return
  # shellcheck disable=SC2086
  timeout 60 gst-launch-1.0 -q $picture ! framesharesink stream=installed wait-for-connection=true sync=false &
  exporter=$!
  timeout 60 gst-launch-1.0 -q framesharesrc stream=installed connection-timeout=-1 policy=lossless ! filesink location="$work/read" || return
  wait "$exporter" && [ -s "$work/made" ] && cmp "$work/made" "$work/read"
}
check install-frames-cross frames_cross

# A program in C, the recipe's, that finds the installed header through pkg-config and links GStreamer alone.
declared() { env PKG_CONFIG_PATH="$prefix/lib/pkgconfig" pkg-config "$@" gstframeshare-1.0; }
declares_the_plugin() {
  [ "$(declared --variable=pluginsdir)" = "$installed" ] || return
  [ "$(declared --modversion)" = "$(sed -n '0,/^version = /s/^version = "\(.*\)"/\1/p' "$repo/Cargo.toml")" ]
}
check install-pkg-config declares_the_plugin
compiles() {
  # shellcheck disable=SC2016  # backticks of Markdown
  sed -n '/^```c$/,/^```$/{/^```/!p}' "$prefix/share/doc/frameshare/docs/recipes.md" >"$work/numbers.c"
  # shellcheck disable=SC2046  # flags are words
  "${CC:-cc}" -Wall -Wextra -Werror "$work/numbers.c" $(declared --cflags --libs) -o "$work/numbers"
}
check install-header-compiles compiles
# Through two converters: 60 frames of one session, none missing that is not counted, each published a moment ago.
numbers_cross() {
  export XDG_RUNTIME_DIR=$work GST_REGISTRY=$work/registry.bin GST_PLUGIN_PATH=$installed
  timeout 60 gst-launch-1.0 -q videotestsrc is-live=true ! video/x-raw,width=320,height=240 ! framesharesink stream=cam0 &
  local exporter=$! status=0
  timeout 60 "$work/numbers" >"$work/numbers.txt" || status=$?
  kill "$exporter"
  wait "$exporter"
  tail -n 3 "$work/numbers.txt"
  [ "$status" = 0 ] && awk '
    { if (NR > 1 && ($2 != last + 1 + $6 || $5 != session)) bad = 1; last = $2; session = $5 }
    $2 < 1 || $5 == "0:" || $11 < 0 || $11 > 60e9 { bad = 1 }
    END { exit bad || NR != 60 }' "$work/numbers.txt"
}
check install-numbers-cross numbers_cross

# libframeshare, by its guide.
"$repo/tests/c-library.sh" "$build" || failed=1

# The same through `make install`, to a place that a distribution would take.
made=$work/made-by-make
check install-make make -C "$repo" --no-print-directory install BUILD="$build" \
  PREFIX=/usr LIBDIR=lib/multiarch DESTDIR="$made"
check install-make-header test -f "$made/usr/include/frameshare/gstframeshare.h"
check install-make-pkg-config test -f "$made/usr/lib/multiarch/pkgconfig/gstframeshare-1.0.pc"
check install-make-plugin inspect "$made/usr/lib/multiarch/gstreamer-1.0" framesharesrc

exit $failed
