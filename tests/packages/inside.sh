#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# For tests/packages.sh, in a fresh root file system that is thrown away: README is on stdin.
#
#   tests/packages/inside.sh RELEASE
# shellcheck disable=SC2317,SC2329  # functions are called through `check`
set -uo pipefail
release=$1
work=$(mktemp -d)
chmod 755 "$work"
readme=$(cat)
# shellcheck source=tests/check.sh
. tests/check.sh
check_here() { check "packages-$release-$1" "${@:2}"; }

# A command of the page's table, a block of the page, a pipeline of README.
install_command() {
  sed -n "s#^| .* | \`sudo \(.*/packages/$release/.*\)\` |\$#\1#p" docs/install.md | grep .
}
block() { sed -n "/^\`\`\`sh $1\$/,/^\`\`\`\$/{/^\`\`\`/!p}" docs/install.md | grep .; }
pipeline() { grep -m1 -oE "^    gst-launch-1.0 $1.*" <<<"$readme" | sed 's/ *#.*//' | grep .; }

# Becomes COMMAND as a user, with the variables of a login. In the background its number is that of the command.
as_user() { # COMMAND...
  exec setpriv --reuid=user --regid=user --init-groups env -i -C /home/user --default-signal=INT PATH=/usr/bin:/bin \
    HOME=/home/user LC_ALL=C.UTF-8 XDG_RUNTIME_DIR="$run_dir" "$@"
}
run_dir=/run/user/1000

# Waits for a condition while a process runs.
until_true() { # PROCESS COMMAND...
  until "${@:2}" >/dev/null 2>&1; do
    kill -0 "$1" 2>/dev/null || return
    sleep 0.2
  done
}

# Dependencies alone, so that nothing but frameshare's is left after a purge.
prepare() {
  local packages
  echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/90yes
  # systemd's own tool, without systemd, makes the folders of tmpfiles.d.
  apt-get update -q && apt-get install -q systemd-standalone-tmpfiles && useradd --create-home user || return
  install -d -o user -m 700 "$run_dir" || return
  packages=$(eval "$(install_command | sed 's/^apt/apt-get -s/')" | sed -n 's/^Inst \([^ ]*\) .*/\1/p' |
    grep -v frameshare) || return
  # shellcheck disable=SC2086  # words
  apt-get install -q $packages
}

no_build_tools() { ! command -v cc gcc cargo rustc make; }

# Every file, link and folder but those where apt, dpkg and the linker note what they did.
list_files() {
  local place skip=()
  for place in /proc /sys /dev /tmp /repo /home /run/user /var/lib/dpkg /var/lib/apt /var/cache/apt /var/cache/ldconfig \
    /var/cache/debconf /var/log /etc/ld.so.cache; do
    skip+=(-path "$place" -prune -o)
  done
  find / "${skip[@]}" \( -type d -printf '%p %y %m %u\n' -o -printf '%p %y %m %u %s %l\n' \) | sort
}

ours() { dpkg-query -W -f '${Package} ${db:Status-Status}\n' '*frameshare*' 2>/dev/null | grep -v not-installed; }
installed() {
  eval "$(install_command)" && [ "$(ours | grep -c ' installed$')" = 5 ]
}
element_found() {
  (as_user gst-inspect-1.0 framesharesrc) |
    grep -E 'Filename .* (/usr)?/lib/[a-z0-9_-]*/gstreamer-1.0/libgstframeshare.so'
}

# The lines of README that need no display.
first_screen() {
  local publish read exporter reader status=0
  publish=$(pipeline videotestsrc) && read=$(pipeline '.*fakevideosink') || return
  # shellcheck disable=SC2086  # words
  as_user timeout 300 $publish >"$work/exporter" 2>&1 &
  exporter=$!
  until_true "$exporter" test -S "$run_dir/frameshare/cam0.sock" || status=1
  # shellcheck disable=SC2086  # words
  as_user timeout 300 $read >"$work/reader" 2>&1 &
  reader=$!
  until_true "$reader" grep -q '^progressreport0 ' "$work/reader" || status=1
  (as_user frameshare list) | tee "$work/list"
  grep -qE '^cam0 ' "$work/list" || status=1
  kill "$reader" "$exporter"
  wait
  cat "$work/exporter" "$work/reader"
  return "$status"
}

commands_of_page() {
  local commands
  commands=$(block first) || return
  (as_user timeout 300 bash -euc "trap 'kill %1' EXIT; $commands") >"$work/page" 2>&1 </dev/null
  local status=$?
  cat "$work/page"
  [ "$status" = 0 ] && grep -q '^cam0 ' "$work/page"
}

observed() { (as_user frameshare info "$1"); }
# Shares a test pattern while a command runs.
while_published() { # STREAM COMMAND...
  local publisher status=0
  as_user frameshare publish "$1" --size 64x48 >/dev/null &
  publisher=$!
  until_true "$publisher" observed "$1" && ("${@:2}") || status=1
  kill -INT "$publisher"
  wait "$publisher"
  return "$status"
}
reads_five() {
  as_user timeout 60 python3 -c '
import frameshare
with frameshare.open("cam1") as stream:
    for number, frame in zip(range(5), stream):
        assert frame.planes
print(frameshare.__version__, number)'
}
python_reads() { while_published cam1 reads_five; }

# A user without XDG_RUNTIME_DIR.
shared_folder() {
  local run_dir='' folder
  folder=/run/frameshare/$(id -u user)
  [ "$(stat -c '%a %U' /run/frameshare)" = '1777 root' ] || return
  while_published cam2 test -S "$folder/cam2.sock" && rm -r "$folder"
}

manual_and_completions() {
  local files file
  files=$(dpkg -L frameshare-tools) || return
  for file in man1/frameshare-list.1.gz bash-completion/completions/frameshare.bash vendor-completions/_frameshare \
    vendor_completions.d/frameshare.fish systemd/system/frameshare@.service tmpfiles.d/frameshare.conf \
    frameshare-tools/manual/docs/install.md; do
    grep -F "/$file" <<<"$files" || { echo "no $file" && return 1; }
  done
}

purged() {
  local command
  command=$(block remove) && eval "${command#sudo }" && [ -z "$(ours)" ]
}
same_files() { diff "$work/before" <(list_files); }
# Negative control: a single empty file is a trace.
trace_is_seen() {
  touch /usr/share/trace
  ! same_files
}

check_here dependencies prepare
check_here no-build-tools no_build_tools
list_files >"$work/before"
check_here installed installed
check_here element-found element_found
echo "VERSION GStreamer $(dpkg-query -W -f '${Version}' libgstreamer1.0-0t64 2>/dev/null || dpkg-query -W -f '${Version}' libgstreamer1.0-0)"
echo "VERSION libc $(dpkg-query -W -f '${Version}' libc6)"
check_here first-screen first_screen
check_here page commands_of_page
check_here python python_reads
check_here shared-folder shared_folder
check_here manual-and-completions manual_and_completions
check_here purged purged
check_here without-a-trace same_files
check_here trace-is-seen trace_is_seen
exit $failed
