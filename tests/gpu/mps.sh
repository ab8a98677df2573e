# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Source this file: it runs a command beside a daemon of NVIDIA's multi-process service (MPS), as an ordinary process with
# a folder of its own. No setting of the GPU is changed.
#
#   under_mps COMMAND...
#
# MPS selects the clients among the processes of the command:
#
#   none       no process (default); no daemon is started
#   all        exporters and readers
#   readers    readers, that is all but exporters
#
# The programs set CUDA_MPS_PIPE_DIRECTORY to MPS_OF_EXPORTERS and MPS_OF_READERS for their processes. The folder is in
# /dev/shm, which the runtime of enter-runtime.sh shares with the host. MPS_CONTROL (nvidia-cuda-mps-control) is the daemon.

under_mps() {
  local folder status
  case ${MPS:=none} in
    none)
      "$@"
      return
      ;;
    all | readers) ;;
    *)
      echo "MPS=$MPS: expected none, all or readers" >&2
      return 2
      ;;
  esac
  folder=$(mktemp -d /dev/shm/frameshare-mps.XXXXXX) || return
  if ! CUDA_MPS_PIPE_DIRECTORY=$folder CUDA_MPS_LOG_DIRECTORY=$folder "${MPS_CONTROL:-nvidia-cuda-mps-control}" -d; then
    echo "cannot start ${MPS_CONTROL:-nvidia-cuda-mps-control}: is it installed with the driver?" >&2
    rm -rf "$folder"
    return 1
  fi
  export MPS_OF_READERS=$folder
  [ "$MPS" = readers ] || export MPS_OF_EXPORTERS=$folder
  "$@"
  status=$?
  unset MPS_OF_READERS MPS_OF_EXPORTERS
  echo quit | CUDA_MPS_PIPE_DIRECTORY=$folder timeout --kill-after=5 20 "${MPS_CONTROL:-nvidia-cuda-mps-control}" ||
    mps_kill "$folder"
  sed 's/^/mps: /' "$folder"/*.log | tail -n 20
  rm -rf "$folder"
  return $status
}

# The daemon of this folder does not end while a client hangs.
mps_kill() { # FOLDER
  echo "the daemon in $1 did not quit, and is killed" >&2
  [ ! -e "$1/nvidia-cuda-mps-control.pid" ] || kill -9 "$(<"$1/nvidia-cuda-mps-control.pid")"
}
