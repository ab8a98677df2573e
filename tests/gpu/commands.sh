# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Runs the commands of docs/gpu.md verbatim. Sourced by tests/gpu/run; the commands run inside its runtime.
#
# The commands of one block run in parallel, as in one terminal each. Each must reach the end of its stream and succeed,
# and its sink must have received frames.

# The introductory commands for frames on a GPU.
FIRST='
    gst-launch-1.0 filesrc location=video.mp4 ! qtdemux ! h264parse ! nvh264dec ! framesharesink stream=cam0
    gst-launch-1.0 framesharesrc stream=cam0 ! cudadownload ! videoconvert ! autovideosink
'

# No screen is needed. Sinks log the number of rendered frames when they stop.
TERMINAL=(GST_PLUGIN_FEATURE_RANK=fakevideosink:MAX GST_DEBUG=basesink:5 GST_DEBUG_NO_COLOR=1)

rendered() { # OUTPUT: prints the number of frames
  sed -n 's/.* rendered: \([0-9]*\), dropped: .*/\1/p' "$1" | tail -n 1
}

together() { # NAME COMMAND...
  local name=$1 at=$RUNTIME/tmp/commands.$1 number=0 command typed=() status=0 frames
  shift
  for command in "$@"; do
    number=$((number + 1))
    in_gst env -C /work "${TERMINAL[@]}" timeout --kill-after=5 60 bash -c "$command" </dev/null >"$at.$number" 2>&1 &
    typed+=($!)
  done
  number=0
  for command in "$@"; do
    number=$((number + 1))
    if ! wait "${typed[number - 1]}"; then
      echo "FAIL commands-$name-$number: the command failed: $command"
    elif ! grep -q '^Got EOS from element' "$at.$number"; then
      echo "FAIL commands-$name-$number: the end of the stream was not reached: $command"
    elif frames=$(rendered "$at.$number") && [ "${frames:-0}" = 0 ]; then
      echo "FAIL commands-$name-$number: no frame arrived: $command"
    else
      echo "PASS commands-$name-$number: $frames frames: $command"
      continue
    fi
    status=1
    grep -v ' basesink ' "$at.$number" | tail -n 5 | cut -c1-300
  done
  return $status
}

# Runs the commands of a page, one indented block after the other.
type_all() { # NAME <PAGE
  local line block=() number=0 status=0
  while IFS= read -r line || [ -n "$line" ]; do
    if [[ $line = '    gst-launch-1.0 '* ]]; then
      block+=("${line#    }")
    elif [ ${#block[@]} != 0 ]; then
      number=$((number + 1))
      together "$1-$number" "${block[@]}" || status=1
      block=()
    fi
  done < <(cat && echo)
  [ $number != 0 ] || { echo "FAIL commands-$1: the page has no commands" && return 1; }
  return $status
}

commands() {
  runtime || return
  local status=0
  cp "$RUNTIME/work/hd.h264" "$RUNTIME/work/video.h264" && cp "$RUNTIME/work/bigbuckbunny.mp4" "$RUNTIME/work/video.mp4" || return
  type_all first <<<"$FIRST" || status=1
  type_all page <docs/gpu.md || status=1
  return $status
}
