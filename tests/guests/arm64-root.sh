#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Root file system of Debian 13 (trixie) for arm64: GStreamer, and what is built against it.
#
#   tests/guests/arm64-root.sh        makes it where it is missing, and prints its folder
#
# Packages are unpacked, with signatures checked by apt, and not configured: that would run arm64 programs. The folder is
# GUESTS/arm64-root (default /var/tmp/frameshare-guests), some 1 GB. DEBIAN_MIRROR names another mirror. Needs root.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
guests=${GUESTS:-/var/tmp/frameshare-guests}
# shellcheck source=tests/guests/apt.sh
. "$here/apt.sh"
# The shell and the programs that tests run; then GStreamer.
packages=(base-files base-passwd bash coreutils dash diffutils findutils grep iproute2 kmod libc-bin mawk mount procps sed tar util-linux
  busybox-static gstreamer1.0-tools gstreamer1.0-plugins-base gstreamer1.0-plugins-good
  libgstreamer1.0-dev libgstreamer-plugins-base1.0-dev)

unpack() { # FOLDER
  local package
  mkdir -p "$1"
  apt_source "$1.apt" arm64 /usr/share/keyrings/debian-archive-keyring.gpg "${DEBIAN_MIRROR:-http://deb.debian.org/debian} trixie main"
  apt_in "$1.apt" apt-get install --yes --download-only "${packages[@]}"
  for package in "$1.apt"/cache/archives/*.deb; do
    # base-files brings /bin, /lib and /sbin as links.
    dpkg-deb --fsys-tarfile "$package" | tar --extract --keep-directory-symlink --directory="$1"
  done
  cp "$1/usr/share/base-passwd/passwd.master" "$1/etc/passwd"
  cp "$1/usr/share/base-passwd/group.master" "$1/etc/group"
  ln -sf mawk "$1/usr/bin/awk"
  rm -rf "$1.apt" "${1:?}"/usr/share/{doc,man,locale,icons,fonts}
}

mkdir -p "$guests"
exec 9>"$guests/arm64-root.lock"
flock 9
if [ ! -d "$guests/arm64-root" ]; then
  echo "arm64-root: unpacking, some minutes; its log is $guests/arm64-root.log" >&2
  rm -rf "$guests/arm64-root.part" "$guests/arm64-root.part.apt"
  set +e
  (set -e && unpack "$guests/arm64-root.part") >"$guests/arm64-root.log" 2>&1 9>&-
  status=$?
  set -e
  [ $status = 0 ] || { tail -n 20 "$guests/arm64-root.log" >&2 && exit $status; }
  mv "$guests/arm64-root.part" "$guests/arm64-root"
fi
echo "$guests/arm64-root"
