#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Makes a release.
#
#   tools/release.sh [--dry-run] VERSION    sets the version, commits and tags; --dry-run does so in a clone that is
#                                           removed, and shows the changes
#   tools/release.sh files                  builds what is published into target/release-files: packages (built twice and
#                                           compared), wheels, bill of materials, changes, checksums
#
# Nothing is pushed: the tag, once pushed, starts .github/workflows/release.yml. Entries of the release are those under
# Unreleased in CHANGELOG.md, one for each change. DATE=2026-11-24 is the release's day instead of today.
set -euo pipefail
cd "$(dirname "$0")/.."

refuse() { echo "release: $*" >&2 && exit 1; }

# In the checkout that is the current folder.
tag() { # VERSION
  local version=$1 date=${DATE:-$(date --utc +%F)}
  [ -z "$(git status --porcelain)" ] || refuse "files are not committed: commit or stash them first"
  ! git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null || refuse "the tag v$version exists: choose a later version"
  tools/version.py set "$version" "$date"
  cargo metadata --locked --offline --format-version=1 >/dev/null || refuse "Cargo.lock does not fit the manifests"
  tools/semver.sh
  git commit --quiet --all --message "release: set version $version"
  tools/version.py changes "$version" | git tag --annotate --cleanup=verbatim --file=- "v$version"
}

dry_run() { # VERSION
  local folder status=0
  folder=$(mktemp -d)
  git clone --quiet --shared . "$folder/frameshare"
  for name in user.name user.email; do
    git -C "$folder/frameshare" config $name "$(git config $name || echo dry-run)"
  done
  "$folder/frameshare/tools/release.sh" "$1" || status=$?
  if [ "$status" = 0 ]; then
    git -C "$folder/frameshare" show --stat --format='%h %s' "v$1^{}" --
    git -C "$folder/frameshare" tag --list --format='%(refname:short) %(contents:lines=3)' "v$1"
    "$folder/frameshare/tools/sbom.py" | sha256sum | sed 's/-$/bill of materials/'
    echo "release: dry run of $1: nothing was changed here"
  fi
  rm -rf "$folder"
  return "$status"
}

files() {
  local target out version release
  target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
  out=$target/release-files
  version=$(tools/version.py check)
  rm -rf "$out" && mkdir -p "$out"
  tools/setup.sh build rootfs python
  tools/deb.sh --twice bookworm trixie noble
  rm -rf "$target/wheels"
  tests/python.sh wheels
  for release in bookworm trixie noble; do cp "$target/packages/$release"/*.deb "$out"; done
  cp "$target"/wheels/*.whl "$out"
  tools/sbom.py >"$out/frameshare-$version.cdx.json"
  tools/version.py changes "$version" >"$out/CHANGES.md"
  (cd "$out" && sha256sum ./* >SHA256SUMS)
  echo "release: $out"
}

case "$#:${1:-}" in
  1:files) files ;;
  1:[0-9]*)
    tag "$1"
    echo "release: v$1 is tagged; to publish: git push origin HEAD v$1"
    ;;
  2:--dry-run) dry_run "$2" ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 2 ;;
esac
