# shellcheck shell=bash
# Source this on a GPU host, as root: it unpacks the runtime that make-runtime.sh packed, and defines
#
#   in_gst COMMAND...      runs COMMAND inside it; what lies in $RUNTIME/work is seen there as /work
#
# BUNDLE (default .gpu) is the folder that holds gst-runtime.tar.gz; RUNTIME (default /tmp/gst) where it is unpacked.
# DRIVER and CUDA are where the host keeps NVIDIA's driver and the CUDA libraries (nvrtc); both are mounted in.
RUNTIME=${RUNTIME:-/tmp/gst}
DRIVER=${DRIVER:-/usr/local/nvidia}
CUDA=${CUDA:-/usr/local/cuda/targets/x86_64-linux/lib}

enter_runtime() {
  local place
  mkdir -p "$RUNTIME"
  if ! mountpoint -q "$RUNTIME/proc"; then
    tar -C "$RUNTIME" -xzf "${BUNDLE:-.gpu}/gst-runtime.tar.gz" || return
    # Some programs go on as another user.
    chmod 755 "$RUNTIME" && rm -f "$RUNTIME/tmp/registry.bin"
    for place in proc sys dev; do
      mount --bind "/$place" "$RUNTIME/$place" || return
    done
    # IPC events live in /dev/shm, which is a mount of its own and does not come with /dev.
    mountpoint -q "$RUNTIME/dev/shm" || mount --bind /dev/shm "$RUNTIME/dev/shm" || return
    mount --bind "$DRIVER" "$RUNTIME/usr/local/nvidia" || return
    mount --bind "$(readlink -f "$CUDA")" "$RUNTIME/cuda" || return
  fi
  # The first process that loads nvcodec takes a second or two, since it probes the encoders; no test shall pay for it.
  in_gst gst-inspect-1.0 nvcodec >"$RUNTIME/tmp/nvcodec.txt" 2>&1
}

in_gst() {
  chroot "$RUNTIME" /usr/bin/env LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/cuda GST_REGISTRY=/tmp/registry.bin \
    GST_CUDA_NVRTC_LIBNAME=/usr/lib/libnvrtc-shim.so GST_PLUGIN_PATH=/work HOME=/tmp XDG_RUNTIME_DIR=/tmp "$@"
}

enter_runtime
