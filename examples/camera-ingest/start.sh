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

echo "encoding the video of two cameras"
exec {cameras}< <(exec "$programs/rtsp-cameras" --audio --clip "$clip" \
  cam0/main=1280x720@25 cam0/sub=640x360@10 cam1/main=1280x720@25)
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
read -r -u "$cameras" line || { echo "the RTSP server did not start" >&2 && exit 1; }
echo "cameras are ${line}"
# Background processes of scripts ignore SIGINT; the supervisor stops its processes at SIGTERM.
trap 'kill "$site" 2>/dev/null || true' INT TERM
"$programs/camera-ingest" run --demo --config "$here/demo.toml" &
site=$!
status=0
wait "$site" || status=$?
# A signal ends the wait, and not the supervisor.
while kill -0 "$site" 2>/dev/null; do wait "$site" || status=$?; done
exit "$status"
