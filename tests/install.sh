#!/bin/bash
# Installs into an empty place the way a user and a distribution do, and has GStreamer find what lies there.
# shellcheck disable=SC2317,SC2329  # functions are called through `check`
set -uo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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

# With a registry in that folder and no system plugins, so that nothing found elsewhere or earlier answers.
inspect() { # FOLDER WHAT
  env GST_REGISTRY="$1/registry.bin" GST_PLUGIN_SYSTEM_PATH= GST_PLUGIN_PATH="$1" gst-inspect-1.0 "$2"
}

# Kept, so that a second run of the tests has little to build.
build=$repo/target/install
staged=$work/staged
installed=$staged/opt/frameshare/lib/gstreamer-1.0
setup() {
  if [ -d "$build/meson-info" ]; then set -- configure "$build"; else set -- setup "$build" "$repo"; fi
  meson "$@" --prefix=/opt/frameshare --libdir=lib
}

check install-setup setup
check install-stage env DESTDIR="$staged" meson install -C "$build"
check install-plugin test -f "$installed/libgstframeshare.so"
check install-licences test -f "$staged/opt/frameshare/share/doc/frameshare/LICENSE-MIT"
check install-sink-found inspect "$installed" framesharesink
check install-src-found inspect "$installed" framesharesrc

# Negative control: without the installed folder nothing answers, so the two finds above are its doing. GStreamer looks
# into sub-folders too.
mkdir "$work/empty"
not_found() { ! inspect "$work/empty" framesharesink; }
check install-nothing-else-answers not_found

exit $failed
