# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Decoding with NVIDIA's decoder: every reader must get every decoded frame unchanged. Sourced by tests/gpu/run; the
# pipelines run inside its runtime.
#
# In the clips every part of every frame differs from the previous frame, and no frame recurs, so a correct checksum
# proves that the correct frame arrived intact. A clip starts only after all its readers are connected, so none misses
# a frame.

# Conversion to a format without row padding: checksumsink includes padding in its checksum.
PLAIN='videoconvert ! video/x-raw,format=I420'

file() { # CLIP: prints its path
  case $1 in
    *.mp4) echo "/work/$1" ;; # a real movie
    *) echo "/work/$1.h264" ;;
  esac
}

parsed() { # CLIP [SOURCE]: prints the pipeline that parses it, up to a decoder
  local from=${2:-filesrc location=$(file "$1")}
  case $1 in
    *.mp4) echo "$from" ! qtdemux ! h264parse ;;
    *) echo "$from" ! h264parse ;;
  esac
}

# Writes a clip once this many readers are connected, according to the exporter's log.
when_all_have_come() { # READERS EXPORTER'S-OUTPUT CLIP
  local until=$((SECONDS + 40))
  until [ "$(grep -c 'reader added' "$2")" = "$1" ]; do
    [ $SECONDS -lt $until ] || { echo "$1 readers did not connect in time" >&2 && return; }
    sleep 0.02
  done
  cat "$RUNTIME$(file "$3")"
}

decode_stream() { # NAME CLIP READERS FENCE DECODER-PROPERTIES SINK-PROPERTIES
  local name=$1 clip=$2 readers=$3 fence=$4 decoder=$5 sink=$6 socket=/tmp/$1.sock at=$RUNTIME/tmp/$1 reader
  local sums=$RUNTIME/tmp/$clip.sums
  : >"$at.exporter" # an earlier run may have left one
  # shellcheck disable=SC2046,SC2086,SC2094  # several words; the log is read while the exporter writes it
  when_all_have_come "$readers" "$at.exporter" "$clip" |
    GST_DEBUG=2,framesharesink:4 GST_DEBUG_NO_COLOR=1 in_gst timeout --kill-after=5 90 gst-launch-1.0 -q --no-fault $(parsed "$clip" fdsrc) ! nvh264dec $decoder \
      ! framesharesink socket-path="$socket" sync=false fence="$fence" $sink >>"$at.exporter" 2>&1 &
  local exporter=$! reading=()
  for ((reader = 1; reader <= readers; reader++)); do
    # shellcheck disable=SC2086  # several words
    GST_DEBUG=2 GST_DEBUG_NO_COLOR=1 in_gst timeout --kill-after=5 90 gst-launch-1.0 -q --no-fault \
      framesharesrc socket-path="$socket" policy=lossless connection-timeout=30000000000 \
      ! cudadownload ! $PLAIN ! checksumsink sync=false >"$at.$reader" 2>"$at.$reader.errors" &
    reading+=($!)
  done
  wait "${reading[@]}"
  wait "$exporter" || { echo "$name: the exporter failed" && tail -n 3 "$at.exporter" && return 1; }
  for ((reader = 1; reader <= readers; reader++)); do
    cut -d' ' -f2 "$at.$reader" >"$at.sums"
    if ! cmp "$sums" "$at.sums" >"$at.cmp" 2>&1; then
      echo "$name: reader $reader got $(wc -l <"$at.sums") frames, which differ from the $(wc -l <"$sums") decoded ones"
      cat "$at.cmp" && tail -n 5 "$at.$reader.errors" | cut -c1-300
      return 1
    fi
  done
  # Ignore warnings about NVIDIA's encoders, which some GPUs lack, and about x264's settings, which stay behind.
  if grep -E ' (WARN|ERROR|FIXME) ' "$at.exporter" "$at".*.errors | grep -vE 'register_cuda| nvenc |GstVideoSEIUserDataUnregisteredMeta'; then
    echo "$name: warnings in the logs" && return 1
  fi
  echo "$(wc -l <"$sums") frames equal the decoded ones, readers: $readers"
}

# Prints the objects that GStreamer's leaks tracer finds alive after an exporting and a reading pipeline.
leaks() {
  runtime || return
  local traced=(env GST_TRACERS=leaks GST_DEBUG=GST_TRACER:7 GST_DEBUG_NO_COLOR=1 timeout --kill-after=5 60 gst-launch-1.0 -q)
  # shellcheck disable=SC2046  # several words
  in_gst "${traced[@]}" $(parsed hd) ! nvh264dec num-output-surfaces=0 \
    ! framesharesink socket-path=/tmp/leaks.sock wait-for-connection=true sync=false >"$RUNTIME/tmp/leaks.exporter" 2>&1 &
  local exporter=$!
  in_gst "${traced[@]}" framesharesrc socket-path=/tmp/leaks.sock policy=lossless connection-timeout=30000000000 \
    ! cudadownload ! fakesink >"$RUNTIME/tmp/leaks.reader" 2>&1 || { echo "the reader failed" && return 1; }
  wait "$exporter" || { echo "the exporter failed" && return 1; }
  ! grep -ho 'object-alive, type-name=(string)[A-Za-z].*' "$RUNTIME"/tmp/leaks.{exporter,reader} | cut -c1-200
}

decode() {
  runtime || return
  local clip fence memory name failed=0
  for clip in hd uhd switch bigbuckbunny.mp4; do
    # shellcheck disable=SC2046,SC2086  # several words
    in_gst timeout 60 gst-launch-1.0 -q $(parsed "$clip") ! nvh264dec ! cudadownload ! $PLAIN ! checksumsink \
      | cut -d' ' -f2 >"$RUNTIME/tmp/$clip.sums"
    [ -s "$RUNTIME/tmp/$clip.sums" ] || { echo "$clip: no frame was decoded" && return 1; }
    [ "$(sort "$RUNTIME/tmp/$clip.sums" | uniq -d | wc -l)" = 0 ] || { echo "$clip: frames recur" && return 1; }
  done
  local streams=()
  stream() { # NAME ...
    streams+=("$1")
    { decode_stream "$@" && echo passed; } >"$RUNTIME/tmp/$1.says" 2>&1 &
    # Each stream uses a decoder and several processes; more in parallel only wait for each other.
    while [ "$(jobs -rp | wc -l)" -ge 8 ]; do wait -n; done
  }
  for fence in timeline event; do
    stream "in-place-$fence" hd 1 "$fence" num-output-surfaces=0 export=in-place
    for memory in vmm pool legacy; do
      stream "pool-$memory-$fence" hd 1 "$fence" num-output-surfaces=1 "export=copy memory=$memory"
      stream "copied-$memory-$fence" hd 1 "$fence" num-output-surfaces=0 "export=copy memory=$memory"
    done
    for clip in uhd switch bigbuckbunny.mp4; do
      stream "$clip-in-place-$fence" $clip 1 "$fence" num-output-surfaces=0 export=in-place
      stream "$clip-copied-$fence" $clip 1 "$fence" num-output-surfaces=0 "export=copy memory=vmm"
    done
    stream "uhd-pool-$fence" uhd 1 "$fence" num-output-surfaces=1 "export=copy memory=vmm"
    for readers in 4 8; do
      stream "in-place-$fence-$readers-readers" hd "$readers" "$fence" num-output-surfaces=0 export=in-place
      stream "pool-vmm-$fence-$readers-readers" hd "$readers" "$fence" num-output-surfaces=1 "export=copy memory=vmm"
    done
  done
  wait
  for name in "${streams[@]}"; do
    if [ "$(tail -n 1 "$RUNTIME/tmp/$name.says")" = passed ]; then
      echo "PASS decode-$name: $(head -n 1 "$RUNTIME/tmp/$name.says")"
    else
      echo "FAIL decode-$name" && cat "$RUNTIME/tmp/$name.says" && failed=1
    fi
  done
  return $failed
}
