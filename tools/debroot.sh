#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Root file systems of Debian 12 (bookworm), Debian 13 (trixie) and Ubuntu 24.04 (noble), made once and kept.
#
#   tools/debroot.sh why-not                 says why this machine cannot make or enter one, or nothing
#   tools/debroot.sh make RELEASE            makes the bare system where it is missing
#   tools/debroot.sh make-build RELEASE      makes the one with the tools that build packages
#   tools/debroot.sh ubuntu-keys             prints the file with the keys of Ubuntu's archive, fetched where it is missing
#   tools/debroot.sh run ROOT [--bind FROM:TO]... -- COMMAND...
#                                            runs COMMAND in RELEASE or RELEASE-build, and discards what it changes
#
# DEBROOTS (default /var/tmp/frameshare-debroots) says where they are: 0.3 GB each, 1.2 GB with the tools. DEBIAN_MIRROR
# and UBUNTU_MIRROR name other mirrors. Needs root.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
roots=${DEBROOTS:-/var/tmp/frameshare-debroots}
debian=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
ubuntu=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}

why_not() {
  if [ "$(id -u)" != 0 ]; then
    echo "making a root file system and entering it needs root"
  elif ! unshare --mount true 2>/dev/null; then
    echo "this machine lets even root mount nothing"
  elif ! command -v apt-get >/dev/null; then
    echo "debootstrap comes from Debian's or Ubuntu's packages, and this machine has no apt-get"
  fi
}

# Runs a function once, under a lock, into a folder that appears when it is complete.
once() { # FOLDER FUNCTION...
  local folder=$1
  shift
  mkdir -p "$roots"
  (
    flock 9
    [ ! -d "$folder" ] || exit 0
    echo "debroot: making $folder, some minutes; its log is $folder.log" >&2
    rm -rf --one-file-system "$folder.part"
    # A command of its own: in a condition, a function would not stop at its first error.
    set +e
    (set -e && "$@" "$folder.part") >"$folder.log" 2>&1 9>&-
    status=$?
    set -e
    [ $status = 0 ] || { tail -n 30 "$folder.log" >&2 && exit $status; }
    mv "$folder.part" "$folder"
  ) 9>"$folder.lock"
}

bare() { # RELEASE FOLDER
  "$repo/tools/setup.sh" rootfs
  if [ "$1" = noble ]; then
    # Debian 12's debootstrap has no script for noble; that of gutsy serves all of Ubuntu.
    debootstrap --variant=minbase --components=main,universe --keyring="$roots/ubuntu.gpg" noble "$2" "$ubuntu" gutsy
    printf 'deb %s %s main universe\n' "$ubuntu" noble "$ubuntu" noble-updates >"$2/etc/apt/sources.list"
  else
    debootstrap --variant=minbase "$1" "$2" "$debian"
    printf 'deb %s %s main\n' "$debian" "$1" "$debian" "$1-updates" >"$2/etc/apt/sources.list"
  fi
  chroot "$2" apt-get update -q
}

# Debian 12 has no package of Ubuntu's keys. Debian 13 has, and signs it.
ubuntu_keys() {
  [ ! -e "$roots/ubuntu.gpg" ] || return 0
  local folder
  once "$roots/trixie" bare trixie
  folder=$(mktemp -d)
  enter trixie --bind "$folder:/keys" -- sh -ec 'cd /tmp; apt-get update -qq; apt-get download -q ubuntu-keyring
    dpkg-deb -x ubuntu-keyring_*.deb all; cp all/usr/share/keyrings/ubuntu-archive-keyring.gpg /keys'
  mv "$folder/ubuntu-archive-keyring.gpg" "$roots/ubuntu.gpg"
  rmdir "$folder"
}

with_tools() { # RELEASE FOLDER
  local packages
  # Those that debian/control names, each up to its version and at the comma.
  packages=$(sed -n '/^Build-Depends:/,/^[A-Z]/p' "$repo/packaging/debian/control" |
    sed -nE 's/^ ([a-z0-9.+-]+).*/\1/p' | sed 's/^debhelper-compat$/debhelper/')
  cp -a "$roots/$1" "$2"
  mount_system "$2"
  # shellcheck disable=SC2086  # words
  chroot "$2" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
    build-essential lintian $packages
  chroot "$2" apt-get clean
}

# In a mount namespace of the caller's own.
mount_system() { # FOLDER
  local place
  for place in /proc /sys /dev; do mount --rbind "$place" "$1$place"; done
}

make_root() { # RELEASE[-build]
  local release=${1%-build}
  case $release in bookworm | trixie | noble) ;; *) echo "debroot: no release \"$1\": expected bookworm, trixie or noble" >&2 && exit 2 ;; esac
  [ "$release" != noble ] || ubuntu_keys
  once "$roots/$release" bare "$release"
  [ "$release" = "$1" ] || once "$roots/$1" namespaced with_tools "$release"
}

# Runs a function of this script in a mount namespace, so that nothing stays mounted however it ends.
namespaced() { # FUNCTION ARGUMENT...
  unshare --mount "$repo/tools/debroot.sh" "$@"
}

# The root is the lower layer of an overlay; the upper one is thrown away.
enter() { # ROOT [--bind FROM:TO]... -- COMMAND...
  local changes status=0
  changes=$(mktemp -d "$roots/run.XXXXXX")
  mkdir "$changes"/{upper,work,root}
  # shellcheck disable=SC2016  # expanded by the inner shell
  unshare --mount bash -euc '
    lower=$1 changes=$2 root=$2/root; shift 2
    mount -t overlay overlay -o "lowerdir=$lower,upperdir=$changes/upper,workdir=$changes/work" "$root"
    mount -t tmpfs tmpfs "$root/run"
    for place in /proc /sys /dev; do mount --rbind "$place" "$root$place"; done
    while [ "$1" = --bind ]; do
      mkdir -p "$root${2#*:}"
      mount --bind "${2%%:*}" "$root${2#*:}"
      shift 2
    done
    shift
    exec chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
  ' enter "$roots/$1" "$changes" "${@:2}" || status=$?
  rm -rf --one-file-system "$changes"
  return $status
}

command=${1:-}
[ $# = 0 ] || shift
case $command in
  why-not) why_not ;;
  with_tools) with_tools "$@" ;; # by `namespaced`
  make | make-build | ubuntu-keys | run)
    reason=$(why_not)
    [ -z "$reason" ] || { echo "debroot: $reason" >&2 && exit 1; }
    case $command in
      make) make_root "$1" ;;
      make-build) make_root "$1-build" ;;
      ubuntu-keys) ubuntu_keys >&2 && echo "$roots/ubuntu.gpg" ;;
      run) make_root "$1" && enter "$@" ;;
    esac
    ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 2 ;;
esac
