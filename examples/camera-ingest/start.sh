#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Run the demo: an RTSP server with two cameras, and beside it the supervisor. Ctrl-C ends both.
#
#   start.sh FOLDER      of the programs
set -euo pipefail
programs=$1
here=$(cd "$(dirname "$0")" && pwd)
clip=$("$here/../../tools/clip.sh")
site=

"$programs/rtsp-cameras" --audio --clip "$clip" cam0/main=1280x720@25 cam0/sub=640x360@10 cam1/main=1280x720@25 >/dev/null &
cameras=$!
trap 'kill "$cameras" 2>/dev/null || true' EXIT
# Background processes of scripts ignore SIGINT; the supervisor stops its processes at SIGTERM.
trap 'kill "$site" 2>/dev/null || true' INT TERM
"$programs/camera-ingest" run --demo --config "$here/demo.toml" &
site=$!
status=0
wait "$site" || status=$?
# A signal ends the wait, and not the supervisor.
while kill -0 "$site" 2>/dev/null; do wait "$site" || status=$?; done
exit "$status"
