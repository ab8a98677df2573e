#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# GStreamer 1.26 on a machine whose own is older: a root file system of Debian trixie, made once and kept.
#
#   tests/rootfs.sh why-not              says why this machine cannot make or use one, or nothing
#   tests/rootfs.sh make                 makes it where it is missing
#   tests/rootfs.sh path                 prints where it is
#   tests/rootfs.sh run COMMAND...       runs COMMAND in it; the checkout lies there under the same path as here
#   tests/rootfs.sh tests FOLDER...      runs in it the test binaries, built here, of the packages in these folders
#
# ROOTFS (default /var/tmp/frameshare-trixie) says where it lies, about 1.3 GB. ALSO names further packages to install in
# it. Needs root and a Debian machine, whose
# own mirror serves the packages.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
rootfs=${ROOTFS:-/var/tmp/frameshare-trixie}
target=${CARGO_TARGET_DIR:-$repo/target}
packages=(
  gstreamer1.0-tools gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-bad gstreamer1.0-plugins-ugly
  gstreamer1.0-libav gstreamer1.0-rtsp gstreamer1.0-plugins-base-apps python3-gi gir1.2-gstreamer-1.0
  python3-anyio python3-numpy python3-pytest python3-uvloop
)
read -ra also <<<"${ALSO:-}"
packages+=("${also[@]}")

os() { sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}$/\1/p" /etc/os-release; } # KEY

why_not() {
  if [ "$(id -u)" != 0 ]; then
    echo "making a root file system and entering it needs root"
  elif [ "$(os ID)" != debian ]; then
    echo "a root file system is made from Debian's packages, and this machine is not Debian"
  elif ! unshare --mount true 2>/dev/null; then
    echo "this machine lets even root mount nothing"
  fi
}

mirror() { # the one that apt takes this Debian's own packages from
  # shellcheck disable=SC2016  # apt's variable, not the shell's
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Release: $(os VERSION_CODENAME)" | head -n1
}

make_rootfs() {
  exec 9>"$rootfs.lock"
  flock 9 # two checkouts may want it at once
  if [ ! -e "$rootfs/.ready" ]; then
    install_rootfs
  elif lacks_packages; then
    install_packages >"$rootfs.log" 2>&1 9>&- || { tail -n 30 "$rootfs.log" >&2 && exit 1; }
  fi
  exec 9>&- # what is run in it shall not keep the lock
}

lacks_packages() { # those of another checkout may be there, too
  local package
  for package in "${packages[@]}"; do
    tr " " "\n" <"$rootfs/.ready" | grep -qxF -- "$package" || return 0
  done
  return 1
}

install_rootfs() {
  "$repo/tools/setup.sh" rootfs
  local from
  from=$(mirror)
  if [ -z "$from" ]; then apt-get update -q && from=$(mirror); fi # an image's lists are often thrown away
  echo "rootfs: making $rootfs, some minutes; its log is $rootfs.log"
  rm -rf --one-file-system "$rootfs" # one that was broken off
  {
    debootstrap --variant=minbase trixie "$rootfs" "$from"
    install_packages
  } >"$rootfs.log" 2>&1 9>&- || { tail -n 30 "$rootfs.log" >&2 && exit 1; }
}

install_packages() {
  chroot "$rootfs" apt-get update -q &&
    chroot "$rootfs" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}" &&
    printf '%s\n' "${packages[@]}" >>"$rootfs/.ready"
}

# The mounts live in a namespace of their own, so that however the command ends nothing stays mounted. Paths are the
# same inside as outside, because test binaries carry the paths of their helpers in them.
enter() { # COMMAND...
  mkdir -p "$target"
  # shellcheck disable=SC2016  # expanded by the inner shell
  exec unshare --mount bash -euc '
    rootfs=$1 here=$2; shift 2
    mounts=("$1" "$2"); shift 2
    mount -t tmpfs none "$rootfs/tmp"
    mount -t tmpfs none "$rootfs/run"
    for place in /proc /sys /dev; do mount --rbind "$place" "$rootfs$place"; done
    for place in "${mounts[@]}"; do
      mkdir -p "$rootfs$place"
      mount --bind "$place" "$rootfs$place"
    done
    exec chroot "$rootfs" env -C "$here" HOME=/tmp XDG_RUNTIME_DIR=/run GST_REGISTRY=/tmp/registry.bin "$@"
  ' enter "$rootfs" "$PWD" "$repo" "$target" "$@"
}

# Test binaries and modules without GStreamer have run already.
run_tests() { # FOLDER...
  local skip
  skip=$(grep -LEi 'gst|pipeline|frameshare(sink|src)' "$repo"/tests/tests/faults/*.rs | sed 's#.*/\(.*\)\.rs$#faults:\1::#')
  skip+=" hostile:exporters::reader_survives hostile:readers::hostile_readers hostile:readers::blocking"
  NOT="charts compatibility corpus docs layers models release" SKIP=$skip "$repo/tests/binaries.sh" "$@" -- "$repo/tests/rootfs.sh" run
}

command=${1:-}
[ $# = 0 ] || shift
case $command in
  why-not) why_not ;;
  path) echo "$rootfs" ;;
  make | run | tests)
    reason=$(why_not)
    [ -z "$reason" ] || { echo "rootfs: $reason" >&2 && exit 1; }
    make_rootfs
    case $command in
      run) enter "$@" ;;
      tests) run_tests "$@" ;;
    esac
    ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 2 ;;
esac
