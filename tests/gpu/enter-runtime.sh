# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Source this file on a GPU host, as root: it unpacks the runtime packed by make-runtime.sh, and defines
#
#   in_gst COMMAND...      runs COMMAND inside it, where $RUNTIME/work is /work
#
# BUNDLE (default .gpu) is the folder of gst-runtime.tar.gz; RUNTIME (default /tmp/gst) is the folder it is unpacked to.
# DRIVER and CUDA are the host's folders of NVIDIA's driver and of the CUDA libraries (nvrtc); both are mounted.
RUNTIME=${RUNTIME:-/tmp/gst}
DRIVER=${DRIVER:-/usr/local/nvidia}
CUDA=${CUDA:-/usr/local/cuda/targets/x86_64-linux/lib}

enter_runtime() {
  local place
  mkdir -p "$RUNTIME"
  if ! mountpoint -q "$RUNTIME/proc"; then
    tar -C "$RUNTIME" -xzf "${BUNDLE:-.gpu}/gst-runtime.tar.gz" || return
    # Some programs switch to another user.
    chmod 755 "$RUNTIME" && rm -f "$RUNTIME/tmp/registry.bin"
    for place in proc sys dev; do
      mount --bind "/$place" "$RUNTIME/$place" || return
    done
    # IPC events use /dev/shm, a separate mount that a bind mount of /dev does not include.
    mountpoint -q "$RUNTIME/dev/shm" || mount --bind /dev/shm "$RUNTIME/dev/shm" || return
    mount --bind "$DRIVER" "$RUNTIME/usr/local/nvidia" || return
    mount --bind "$(readlink -f "$CUDA")" "$RUNTIME/cuda" || return
  fi
  # The first load of nvcodec takes one or two seconds, since it probes the encoders; do it before any test.
  in_gst gst-inspect-1.0 nvcodec >"$RUNTIME/tmp/nvcodec.txt" 2>&1
}

in_gst() {
  chroot "$RUNTIME" /usr/bin/env LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/cuda GST_REGISTRY=/tmp/registry.bin \
    GST_CUDA_NVRTC_LIBNAME=/usr/lib/libnvrtc-shim.so GST_PLUGIN_PATH=/work HOME=/tmp XDG_RUNTIME_DIR=/tmp "$@"
}

enter_runtime
