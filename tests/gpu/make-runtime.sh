#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Pack GStreamer 1.26 for a GPU host that has an NVIDIA driver but no GStreamer and no packages.
#
#   tests/gpu/make-runtime.sh OUT       writes OUT/gst-runtime.tar.gz (about 15 MB) and OUT/clips/{hd,uhd,switch}.h264 and camera.mp4
#
# The files come from the root file system of tests/rootfs.sh, which needs root on a Debian machine.
# enter-runtime.sh unpacks it on the GPU host.
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
"$repo/tests/rootfs.sh" make
rootfs=$("$repo/tests/rootfs.sh" path)
lib=usr/lib/x86_64-linux-gnu

# nvcodec provides nvh264dec, cudaupload, cudadownload, cudaipcsink and cudaipcsrc.
plugins=(
  coreelements videotestsrc videoconvertscale videorate videofilter audioconvert audioresample volume app autodetect
  typefindfunctions playback isomp4 matroska jpeg multifile rawparse rtp rtpmanager udp rtsp
  nvcodec unixfd shm videoparsersbad openh264 debugutilsbad coretracers
)
tools=(gst-launch-1.0 gst-inspect-1.0 bash sh env cat ls sleep timeout kill grep date setpriv)
# Libraries that only libcuda.so.1 and Rust binaries load.
libraries=(libdl.so.2 libpthread.so.0 librt.so.1 libm.so.6 libstdc++.so.6 libgcc_s.so.1)

# Luma and chroma of every region of the clips change in every frame, and no frame recurs within 256 frames (kt is odd),
# so that a stale or torn frame is detected. The clips are 1080p, 2160p, and one that alternates between 1080p and 720p
# every 30 frames.
encode() { # NAME WIDTH HEIGHT FRAMES KBIT/S PHASE [FRAMES/S]
  local caps="video/x-raw,format=I420,width=$2,height=$3,framerate=${7:-60}/1"
  local file=("video/x-h264,stream-format=byte-stream,alignment=au" ! filesink location="/tmp/clips/$1.h264")
  [[ $1 != *.mp4 ]] || file=(mp4mux ! filesink location="/tmp/clips/$1")
  local plate=(kx2=3 ky2=3 kt=23 k0="$6" num-buffers="$4")
  chroot "$rootfs" gst-launch-1.0 -q compositor name=both sink_1::alpha=0.5 \
    ! "$caps" ! x264enc speed-preset=superfast tune=zerolatency bitrate="$5" key-int-max=30 \
    ! h264parse ! "${file[@]}" \
    videotestsrc pattern=zone-plate "${plate[@]}" ! "$caps" ! both. \
    videotestsrc pattern=chroma-zone-plate "${plate[@]}" ! "$caps" ! both.
}
make_clips() {
  local made=$rootfs/tmp/clips i
  rm -rf "$made" && mkdir -p "$made" "$out/clips"
  encode hd 1920 1080 300 4500 0
  encode uhd 3840 2160 120 10000 0
  for i in 0 2 4; do encode part$i 1920 1080 30 3500 $((i * 40)); done
  for i in 1 3 5; do encode part$i 1280 720 30 3500 $((i * 40)); done
  cat "$made"/part[0-5].h264 >"$made/switch.h264"
  # A camera of the ingest demo is a file in a loop, with times.
  encode camera.mp4 1920 1080 90 3000 0 30
  cp "$made"/{hd,uhd,switch}.h264 "$made/camera.mp4" "$out/clips/" # switch last: its presence marks the set as complete
  rm -rf "$made"
}
[ -e "$out/clips/switch.h264" ] || make_clips

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
want=("/$lib/gstreamer1.0/gstreamer-1.0/gst-plugin-scanner" /lib64/ld-linux-x86-64.so.2)
want+=("${tools[@]/#//usr/bin/}" "${libraries[@]/#//$lib/}")
for plugin in "${plugins[@]}"; do want+=("/$lib/gstreamer-1.0/libgst$plugin.so"); done
mapfile -t linked < <(
  for file in "${want[@]}"; do chroot "$rootfs" ldd "$file" 2>/dev/null || true; done | grep -oE '/[^ ]+\.so[^ ]*' | sort -u
)
for file in "${want[@]}" "${linked[@]}"; do
  [ -e "$rootfs$file" ] || { echo "make-runtime: $file is not in $rootfs" >&2 && exit 1; }
  folder=$(chroot "$rootfs" readlink -f "$(dirname "$file")")
  mkdir -p "$stage$folder"
  cp -L "$rootfs$file" "$stage$folder/"
done
for link in bin lib lib64 sbin; do
  if [ -L "$rootfs/$link" ]; then ln -s "$(readlink "$rootfs/$link")" "$stage/$link"; fi
done
mkdir -p "$stage"/{proc,sys,dev,tmp,etc,run,work,cuda,usr/local/nvidia}
cc -O2 -shared -fPIC -o "$stage/usr/lib/libnvrtc-shim.so" "$repo/tests/gpu/nvrtc-shim.c" -ldl
find "$stage" -type f -name '*.so*' -exec strip --strip-unneeded {} + 2>/dev/null || true # some are linker scripts
tar -C "$stage" -czf "$out/gst-runtime.tar.gz" .
