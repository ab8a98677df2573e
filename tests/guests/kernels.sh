#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Kernels of Debian and Ubuntu, downloaded once and kept, with signatures checked by apt.
#
#   tests/guests/kernels.sh list              prints the names of those for x86-64 that are up to date
#   tests/guests/kernels.sh get NAME          downloads the newest one where it is missing, and prints its folder; 5.15-unfixed is
#                                             as Ubuntu 22.04 was released, and lets readers write through /dev/udmabuf
#
# A folder holds `vmlinuz`, `version` and `lib/modules`. GUESTS (default /var/tmp/frameshare-guests) says where they lie:
# 0.1 to 0.6 GB each. DEBIAN_MIRROR, DEBIAN_SECURITY_MIRROR and UBUNTU_MIRROR name other mirrors.
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
guests=${GUESTS:-/var/tmp/frameshare-guests}
debian=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
security=${DEBIAN_SECURITY_MIRROR:-http://deb.debian.org/debian-security}
ubuntu=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}
# shellcheck source=tests/guests/apt.sh
. "$repo/tests/guests/apt.sh"

# Name, source in apt's form, and the package that depends on the newest kernel.
kernels() {
  cat <<END
5.10|$security bullseye-security main|linux-image-amd64
5.15|$ubuntu jammy-updates main|linux-image-generic
5.15-unfixed|$ubuntu jammy main|linux-image-generic
6.1|$debian bookworm main|linux-image-amd64
6.8|$ubuntu noble-updates main|linux-image-generic
6.12|$debian trixie main|linux-image-amd64
newest|$debian trixie-backports main|linux-image-amd64
arm64|$debian trixie main|linux-image-arm64
arm64-16k|$debian trixie main|linux-image-arm64-16k
END
}

# The packages with the kernel and its modules, found by following the dependencies of one package.
depends() { # FOLDER PACKAGE
  apt_in "$1" apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances "$2" | grep -E '^linux-(image|base|binary|modules|modules-extra)-[0-9]' | sort -u
}

download() { # NAME FOLDER
  local source package key packages architecture=amd64
  IFS='|' read -r _ source package < <(kernels | grep "^$1|")
  case $1 in arm64*) architecture=arm64 ;; esac
  case $source in
    "$ubuntu"*) key=$("$repo/tools/debroot.sh" ubuntu-keys) ;;
    *) key=/usr/share/keyrings/debian-archive-keyring.gpg ;;
  esac
  apt_source "$2/apt" "$architecture" "$key" "$source"
  packages=$(depends "$2/apt" "$package")
  [ -n "$packages" ] || { echo "kernels: $package of $source depends on no kernel" >&2 && return 1; }
  # shellcheck disable=SC2086  # names
  (cd "$2/apt" && apt_in "$2/apt" apt-get download $packages)
  for package in "$2"/apt/*.deb; do dpkg-deb -x "$package" "$2"; done
  rm -rf "$2/apt"
  if [ ! -d "$2/lib" ]; then mv "$2/usr/lib" "$2/lib"; fi
  (cd "$2/lib/modules" && echo *) >"$2/version"
  mv "$2"/boot/vmlinuz-* "$2/vmlinuz" 2>/dev/null || mv "$2"/lib/modules/*/vmlinuz "$2/vmlinuz" # from Linux 7 on, beside the modules
  depmod -b "$2" "$(cat "$2/version")"
  rm -rf "${2:?}/boot" "${2:?}/usr"
}

get() { # NAME
  kernels | grep -q "^$1|" || { echo "kernels: $1 is not one of: $(kernels | cut -d'|' -f1 | xargs)" >&2 && exit 2; }
  mkdir -p "$guests"
  exec 9>"$guests/$1.lock"
  flock 9
  if [ ! -d "$guests/$1" ]; then
    echo "kernels: downloading $1; its log is $guests/$1.log" >&2
    rm -rf "$guests/$1.part"
    set +e
    (set -e && download "$1" "$guests/$1.part") >"$guests/$1.log" 2>&1 9>&-
    status=$?
    set -e
    [ $status = 0 ] || { tail -n 20 "$guests/$1.log" >&2 && exit $status; }
    mv "$guests/$1.part" "$guests/$1"
  fi
  echo "$guests/$1"
}

case ${1:-} in
  list) kernels | cut -d'|' -f1 | grep -v -e arm64 -e unfixed ;;
  get) get "${2:?the name of a kernel}" ;;
  *) sed -n '3,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 2 ;;
esac
