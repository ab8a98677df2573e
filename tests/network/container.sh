#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Runs a command as a container does: a root of its own, of this machine's packages, read-only; no capability.
#
#   container.sh ROOT USER SHM CHECKOUT [HOST:PATH...] -- COMMAND...
#
# In new namespaces (unshare). ROOT is an empty folder, SHM a folder for /dev/shm, CHECKOUT is there under the same
# path, and each HOST folder under PATH, writable.
set -euo pipefail
root=$1 user=$2 shm=$3 checkout=$4
shift 4

bind() { # FROM TO [OPTIONS]
  mkdir -p "$root$2"
  mount --bind "$1" "$root$2"
  [ -z "${3:-}" ] || mount -o "remount,bind,$3" "$root$2"
}

mount --make-rprivate /
mount -t tmpfs tmpfs "$root"
for folder in bin sbin lib lib64 usr etc; do
  if [ -L "/$folder" ]; then cp -P "/$folder" "$root/"; elif [ -d "/$folder" ]; then bind "/$folder" "/$folder" ro; fi
done
mkdir -p "$root"/{proc,tmp,dev}
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
bind "$checkout" "$checkout" ro # it may be in /tmp
for device in null zero full random urandom; do
  touch "$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device"
done
bind "$shm" /dev/shm
while [ "$1" != -- ]; do
  bind "${1%%:*}" "${1#*:}"
  shift
done
shift
mkdir "$root/old"
cd "$root"
pivot_root . old
umount --lazy old
mount -o remount,ro /
exec setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all -- "$@"
