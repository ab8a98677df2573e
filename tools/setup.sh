#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Install what a part of the project needs and this machine lacks.
#
#   tools/setup.sh GROUP...      GROUP is one of: build play ingest install python torch test page network rootfs guests arm64 docs bench soak audit fuzz sanitize semver mutants record
#
# It asks for the thing itself (a command, a library, a GStreamer element), not for a package, so a machine that got
# it some other way passes. Nothing missing: nothing is touched, no privilege is needed, nothing is printed. Otherwise
# it says what is missing and why, and installs the Debian or Ubuntu packages as root or through sudo.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

# Prints missing things: one line "package<TAB>thing<TAB>reason" each.
missing() { # GROUP...
  for group in "$@"; do
    case $group in
      build)
        need cmd cc build-essential "compiles and links"
        need cmd pkg-config pkg-config "finds GStreamer for the build"
        need lib "gstreamer-1.0 >= 1.22" libgstreamer1.0-dev "the plugin is built against it"
        need lib "gstreamer-audio-1.0 >= 1.22" libgstreamer-plugins-base1.0-dev "the plugin is built against it"
        need lib "gstreamer-video-1.0 >= 1.22" libgstreamer-plugins-base1.0-dev "the plugin is built against it"
        ;;
      play)
        need cmd gst-launch-1.0 gstreamer1.0-tools "runs pipelines"
        need elem videoconvert gstreamer1.0-plugins-base "converts and paints video"
        need elem qtdemux gstreamer1.0-plugins-good "reads mp4 files"
        need elem h264parse gstreamer1.0-plugins-bad "reads H.264"
        need elem avdec_h264 gstreamer1.0-libav "decodes H.264"
        need elem x264enc gstreamer1.0-plugins-ugly "encodes H.264"
        need cmd python3 python3 "runs the scripts"
        need py pip python3-pip "fetches the demo clip"
        ;;
      ingest)
        need lib "gstreamer-rtsp-server-1.0 >= 1.22" libgstrtspserver-1.0-dev "serves cameras of the demo"
        need elem rtspsrc gstreamer1.0-plugins-good "receives cameras"
        need elem splitmuxsink gstreamer1.0-plugins-good "records segments"
        ;;
      install)
        need cmd meson meson "lays out the installation"
        need cmd ninja ninja-build "meson's back end"
        ;;
      test)
        missing build play ingest install python
        need elem x265enc gstreamer1.0-plugins-bad "encodes H.265"
        need elem av1enc gstreamer1.0-plugins-bad "encodes AV1"
        need elem vp8enc gstreamer1.0-plugins-good "encodes VP8"
        need elem jpegenc gstreamer1.0-plugins-good "encodes MJPEG"
        need lib "gstreamer-check-1.0 >= 1.22" libgstreamer1.0-dev "element tests"
        need lib "gstreamer-app-1.0 >= 1.22" libgstreamer-plugins-base1.0-dev "element tests"
        need cmd gst-play-1.0 gstreamer1.0-plugins-base-apps "plays, discovers and lists streams"
        need cmd c++ g++ "compiles CUDA's own headers, to compare ours with"
        need cmd cmake cmake "builds the examples in C"
        need cmd valgrind valgrind "checks the library for C"
        need cmd shellcheck shellcheck "checks the scripts"
        need cmd make make "runs the steps"
        need typelib Gst-1.0 gir1.2-gstreamer-1.0 "Python recipes"
        need typelib GstVideo-1.0 gir1.2-gst-plugins-base-1.0 "Python recipes"
        need typelib GstRtspServer-1.0 gir1.2-gst-rtsp-server-1.0 "serves the recipes' camera"
        need syspy gi.overrides._gi_gst python3-gst-1.0 "Python recipes"
        need syspy numpy python3-numpy "Python recipes"
        need syspy cv2 python3-opencv "the OpenCV recipe"
        ;;
      python) need py ensurepip python3-venv "tests the Python package in environments of its own" ;;
      torch) # any Python's will do
        if ! python3 -c "import torch" >/dev/null 2>&1; then
          need syspy torch python3-torch "tests the Python package with PyTorch"
          need syspy ensurepip python3-venv "tests the Python package in environments of its own"
        fi
        ;;
      page)
        missing build play
        command -v google-chrome >/dev/null || need cmd chromium chromium "shows the page of the camera ingest demo"
        need cmd node nodejs "drives the browser"
        need cmd npm npm "installs the browser's driver"
        ;;
      network) need cmd ip iproute2 "connects network namespaces, and counts the bytes of connections" ;;
      docs)
        missing build python
        need cmd doxygen doxygen "renders the header for C"
        need cmd python3 python3 "runs the scripts"
        need typelib Gst-1.0 gir1.2-gstreamer-1.0 "lists the elements' properties"
        need syspy gi.overrides._gi_gst python3-gst-1.0 "lists the elements' properties"
        ;;
      guests)
        need cmd qemu-system-x86_64 qemu-system-x86 "runs guests with other kernels"
        need cmd busybox busybox-static "starts them"
        need cmd cpio cpio "packs what they start from"
        need cmd depmod kmod "loads their modules"
        need cmd debootstrap debootstrap "gets the keys of Ubuntu's archive"
        need cmd zstd zstd "unpacks Ubuntu's modules"
        ;;
      arm64)
        need cmd aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu "links programs for arm64"
        need cmd qemu-system-aarch64 qemu-system-arm "runs guests with arm64 kernels"
        ;;
      record) need cmd python3 python3 "records results" ;;
      rootfs) need cmd debootstrap debootstrap "makes the root file system with GStreamer 1.26" ;;
      bench)
        need cmd pipewire pipewire "a rival of the bench"
        need cmd pw-link pipewire-bin "links its nodes"
        need elem pipewiresink gstreamer1.0-pipewire "its elements"
        ;;
      soak) need cmd ffmpeg ffmpeg "records the same cameras" ;;
      mutants) need cmd python3 python3 "runs the scripts" ;; # cargo-mutants comes from crates.io
      audit | fuzz | sanitize | semver) ;; # cargo-deny, cargo-fuzz and cargo-semver-checks come from crates.io, the standard library's source from rustup: see below
      *) echo "setup: no group '$group'; there are: build play ingest install python torch test page network rootfs guests arm64 docs bench soak audit fuzz sanitize semver mutants record" >&2 && exit 2 ;;
    esac
  done
}

need() { # KIND THING PACKAGE REASON
  case $1 in
    cmd) PATH=$PATH:/usr/sbin:/sbin command -v "$2" >/dev/null ;;
    lib) pkg-config --exists "$2" 2>/dev/null ;;
    elem) gst-inspect-1.0 --exists "$2" >/dev/null 2>&1 ;;
    py) python3 -c "import $2" >/dev/null 2>&1 ;;
    syspy) /usr/bin/python3 -c "import $2" >/dev/null 2>&1 ;; # the one that packages are for
    typelib) [ -n "$(find /usr/lib -path "*/girepository-1.0/$2.typelib" -print -quit)" ] ;;
  esac || printf '%s\t%s\t%s\n' "$3" "$2" "$4"
}

# Rust comes first: Debian's and Ubuntu's own is too old, so there is no package to install.
rust() {
  local want have
  want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/Cargo.toml")
  have=$(cargo --version 2>/dev/null | cut -d' ' -f2) || true
  if [ -z "$have" ] || [ "$(printf '%s\n' "$want" "$have" | sort -V | head -n1)" != "$want" ]; then
    echo "setup: frameshare needs Rust $want or newer, and cargo ${have:+is }${have:-was not found}." >&2
    echo "       Distributions' packages are too old: get it from https://rustup.rs, or run 'rustup update stable'." >&2
    exit 1
  fi
}

rust_parts() { # what `make lint` needs of rustup
  local part
  for part in clippy fmt; do
    cargo $part --version >/dev/null 2>&1 && continue
    command -v rustup >/dev/null || { echo "setup: cargo $part is missing, and rustup, which brings it, too" >&2 && exit 1; }
    rustup component add "${part/#fmt/rustfmt}"
  done
}

install() { # PACKAGE...
  local as=()
  if ! command -v apt-get >/dev/null; then
    echo "setup: there is no apt-get here; install the above with this system's own package manager" >&2
    exit 1
  fi
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "setup: as root run: apt-get install $*" >&2 && exit 1; }
    as=(sudo)
    [ -t 0 ] || as+=(-n) # no terminal for a password
    "${as[@]}" true || { echo "setup: sudo refused; as root run: apt-get install $*" >&2 && exit 1; }
  fi
  "${as[@]}" apt-get update -qq
  "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

[ $# -gt 0 ] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 2; }
groups=" $* "
case $groups in *" build "* | *" test "* | *" docs "* | *" audit "*) rust ;; esac
case $groups in *" test "*) rust_parts ;; esac
case $groups in
  *" audit "*)
    if ! cargo deny --version >/dev/null 2>&1; then
      echo "setup: missing cargo-deny, which checks licences, sources and who depends on whom; building it takes minutes"
      cargo install --locked cargo-deny
    fi
    ;;
esac
case $groups in
  *" docs "*)
    for tool in mdbook mdbook-mermaid; do
      if ! command -v $tool >/dev/null; then
        echo "setup: missing $tool, which renders the manual; building it takes minutes"
        cargo install --locked $tool
      fi
    done
    ;;
esac
case $groups in
  *" fuzz "*)
    if ! cargo fuzz --version >/dev/null 2>&1; then
      echo "setup: missing cargo-fuzz, which builds and runs the fuzzer; building it takes minutes"
      cargo install --locked cargo-fuzz
    fi
    ;;
esac
case $groups in
  *" semver "*)
    if ! cargo semver-checks --version >/dev/null 2>&1; then
      echo "setup: missing cargo-semver-checks, which compares public interfaces; building it takes minutes"
      cargo install --locked cargo-semver-checks
    fi
    ;;
esac
case $groups in
  *" mutants "*)
    if ! cargo mutants --version >/dev/null 2>&1; then
      echo "setup: missing cargo-mutants, which lists changes of the code; building it takes minutes"
      cargo install --locked cargo-mutants
    fi
    ;;
esac
case $groups in
  *" sanitize "*)
    if [ ! -e "$(rustc --print sysroot)/lib/rustlib/src/rust/library/Cargo.toml" ]; then
      command -v rustup >/dev/null || { echo "setup: the standard library's source is missing, and rustup, which brings it, too" >&2 && exit 1; }
      rustup component add rust-src
    fi
    ;;
esac

list=$(missing "$@" | sort -u)
[ -n "$list" ] || exit 0
echo "setup: missing on this machine:"
while IFS=$'\t' read -r package thing reason; do
  printf '  %-32s %s: %s\n' "$package" "$thing" "$reason"
done <<<"$list"
mapfile -t packages < <(cut -f1 <<<"$list" | sort -u)
install "${packages[@]}"

list=$(missing "$@" | sort -u)
if [ -n "$list" ]; then
  echo "setup: still missing after the installation:" >&2
  cut -f1,2 <<<"$list" >&2
  exit 1
fi
