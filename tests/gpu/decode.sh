# shellcheck shell=bash
# Real decoding: every reader gets every frame as it was decoded. Sourced by tests/gpu/run, inside whose runtime it plays.
#
# In the films every part of every frame differs from the frame before, and no frame comes again, so that a checksum that
# is right means the right frame, whole. A film is held back until all its readers are there, so that none may miss any.

# What lies between the rows of a picture is nobody's, and checksumsink looks at it.
PLAIN='videoconvert ! video/x-raw,format=I420'

file() { # FILM: where it lies
  case $1 in
    *.mp4) echo "/work/$1" ;; # a real film
    *) echo "/work/$1.h264" ;;
  esac
}

parsed() { # FILM [SOURCE]: what plays it, up to a decoder
  local from=${2:-filesrc location=$(file "$1")}
  case $1 in
    *.mp4) echo "$from" ! qtdemux ! h264parse ;;
    *) echo "$from" ! h264parse ;;
  esac
}

# Writes a film, once so many readers are there; the exporter says who comes.
when_all_have_come() { # READERS EXPORTER'S-OUTPUT FILM
  local until=$((SECONDS + 40))
  until [ "$(grep -c 'reader added' "$2")" = "$1" ]; do
    [ $SECONDS -lt $until ] || { echo "$1 readers do not come" >&2 && return; }
    sleep 0.02
  done
  cat "$RUNTIME$(file "$3")"
}

decode_stream() { # NAME FILM READERS FENCE DECODER-PROPERTIES SINK-PROPERTIES
  local name=$1 film=$2 readers=$3 fence=$4 decoder=$5 sink=$6 socket=/tmp/$1.sock at=$RUNTIME/tmp/$1 reader
  local sums=$RUNTIME/tmp/$film.sums
  : >"$at.exporter" # there may be one of an earlier run
  # shellcheck disable=SC2046,SC2086,SC2094  # several words; what is read is what the exporter has said so far
  when_all_have_come "$readers" "$at.exporter" "$film" |
    GST_DEBUG=2,framesharesink:4 GST_DEBUG_NO_COLOR=1 in_gst timeout --kill-after=5 90 gst-launch-1.0 -q --no-fault $(parsed "$film" fdsrc) ! nvh264dec $decoder \
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
      echo "$name: reader $reader got $(wc -l <"$at.sums") frames, which are not the $(wc -l <"$sums") that were decoded"
      cat "$at.cmp" && tail -n 5 "$at.$reader.errors" | cut -c1-300
      return 1
    fi
  done
  # Warnings of NVIDIA's encoders, which some GPUs lack, are about none of this.
  if grep -E ' (WARN|ERROR|FIXME) ' "$at.exporter" "$at".*.errors | grep -vE 'register_cuda| nvenc '; then
    echo "$name: somebody warned" && return 1
  fi
  echo "$(wc -l <"$sums") frames compared with what was decoded, readers: $readers"
}

# Says what GStreamer's tracer finds alive at the end of a pipeline that exports and of one that reads.
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
  local film fence memory name failed=0
  for film in hd uhd switch bigbuckbunny.mp4; do
    # shellcheck disable=SC2046,SC2086  # several words
    in_gst timeout 60 gst-launch-1.0 -q $(parsed "$film") ! nvh264dec ! cudadownload ! $PLAIN ! checksumsink \
      | cut -d' ' -f2 >"$RUNTIME/tmp/$film.sums"
    [ -s "$RUNTIME/tmp/$film.sums" ] || { echo "$film: nothing is decoded" && return 1; }
    [ "$(sort "$RUNTIME/tmp/$film.sums" | uniq -d | wc -l)" = 0 ] || { echo "$film: frames come again" && return 1; }
  done
  local streams=()
  stream() { # NAME ...
    streams+=("$1")
    { decode_stream "$@" && echo passed; } >"$RUNTIME/tmp/$1.says" 2>&1 &
    # Each has a decoder and some processes; more at once only wait for each other.
    while [ "$(jobs -rp | wc -l)" -ge 8 ]; do wait -n; done
  }
  for fence in timeline event; do
    stream "in-place-$fence" hd 1 "$fence" num-output-surfaces=0 export=in-place
    for memory in vmm pool legacy; do
      stream "pool-$memory-$fence" hd 1 "$fence" num-output-surfaces=1 "export=copy memory=$memory"
      stream "copied-$memory-$fence" hd 1 "$fence" num-output-surfaces=0 "export=copy memory=$memory"
    done
    for film in uhd switch bigbuckbunny.mp4; do
      stream "$film-in-place-$fence" $film 1 "$fence" num-output-surfaces=0 export=in-place
      stream "$film-copied-$fence" $film 1 "$fence" num-output-surfaces=0 "export=copy memory=vmm"
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
