#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Installs the packages of target/packages in fresh root file systems by the commands of docs/install.md, follows README's
# first screen there as an unprivileged user, and purges them.
#
#   tests/packages.sh RELEASE...          RELEASE is one of: bookworm trixie noble
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

[ $# -gt 0 ] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 2; }
reason=$(tools/debroot.sh why-not)
status=0
for release in "$@"; do
  if [ -n "$reason" ]; then
    echo "SKIP packages-$release: $reason"
  elif ! compgen -G "$target/packages/$release/*.deb" >/dev/null; then
    echo "SKIP packages-$release: make deb RELEASES=$release has not built its packages"
  else
    tools/debroot.sh run "$release" --bind "$PWD/tests:/repo/tests" --bind "$PWD/docs:/repo/docs" \
      --bind "$target/packages/$release:/repo/target/packages/$release" -- \
      env -C /repo tests/packages/inside.sh "$release" <README.md || status=1
  fi
done
exit $status
