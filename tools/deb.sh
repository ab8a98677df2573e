#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the Debian packages of each release in a root file system of its own, and checks them with its lintian.
#
#   tools/deb.sh [--twice] RELEASE...     RELEASE: bookworm, trixie or noble
#
# Packages are in target/packages/RELEASE afterwards, and those with debug symbols in its folder debug. --twice builds
# them a second time, from nothing, and compares. The releases have no Rust of the needed version: this machine's
# toolchain, its maturin and the vendored crates are mounted, and nothing is fetched during the build. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
version=$(sed -n "s/^project('frameshare', version: '\([^']*\)'.*/\1/p" meson.build)
vendor=$target/packages/vendor

# Its version is above those of older releases, and below that of a later one of Debian's own.
suffix() { # RELEASE
  case $1 in
    bookworm) echo '~deb12' ;;
    trixie) echo '~deb13' ;;
    noble) echo '~ubuntu24.04' ;;
  esac
}

# Sources as git has them in this checkout, with the folder debian and the release's version.
unpack() { # RELEASE FOLDER
  local changelog=packaging/debian/changelog
  mkdir -p "$2"
  git ls-files -z --cached --others --exclude-standard | grep -zv '^packaging/' |
    tar --create --null --files-from=- --ignore-failed-read 2>/dev/null | tar --extract --directory "$2"
  cp -r packaging/debian "$2/debian"
  [ "$(sed -n '1s/.*(\(.*\)-.*/\1/p' "$changelog")" = "$version" ] ||
    { echo "deb: $(head -n 1 "$changelog"): expected meson.build's version $version first in $changelog" >&2 && exit 1; }
  # An entry of its own, a second after the last one: the time of all files.
  {
    sed -n "1s/\([^~]*\)) [a-z]*;/\1$(suffix "$1")) $1;/p" "$changelog"
    printf '\n  * Build for %s.\n\n' "$1"
    sed -n '/^ -- /{s/  .*//p;q}' "$changelog" | tr '\n' ' '
    date --utc --rfc-email --date "$(sed -n '/^ -- /{s/.*>  //p;q}' "$changelog") + 1 second" | sed 's/^/ /'
    echo
    cat "$changelog"
  } >"$2/debian/changelog"
}

# From the sources in FOLDER.source. CACHE has what cargo built before.
build() { # RELEASE FOLDER CACHE
  mkdir -p "$2"
  cp -a "$2.source" "$2/frameshare-$version"
  mkdir -p "$2/cargo" "$3"
  install -D "$maturin" -t "$2/bin"
  printf '%s\n' '[source.crates-io]' 'replace-with = "vendored"' '[source.vendored]' 'directory = "/opt/vendor"' \
    '[net]' 'offline = true' >"$2/cargo/config.toml"
  tools/debroot.sh run "$1-build" --bind "$2:/build" --bind "$(rustc --print sysroot):/opt/rust" \
    --bind "$vendor:/opt/vendor" --bind "$3:/build/frameshare-$version/obj-$(uname -m)-linux-gnu/cargo" -- \
    env -C "/build/frameshare-$version" CARGO_HOME=/build/cargo \
    FRAMESHARE_RUSTFLAGS=--remap-path-prefix=/opt/vendor=/usr/src/vendor \
    PATH="/opt/rust/bin:/build/bin:/usr/sbin:/usr/bin:/sbin:/bin" DEB_BUILD_OPTIONS="parallel=$(nproc)" \
    dpkg-buildpackage --no-sign --no-pre-clean --build=binary >"$2/log" 2>&1 ||
    { tail -n 40 "$2/log" >&2 && return 1; }
  rm -rf "${2:?}/cargo" "${2:?}/bin" "${2:?}/frameshare-$version/obj-"*
}

lint() { # RELEASE FOLDER
  tools/debroot.sh run "$1-build" --bind "$2:/build" -- sh -c \
    'lintian --allow-root --fail-on error,warning /build/*.changes'
}

# Bit by bit, debug symbols included.
same() { # FOLDER FOLDER
  (cd "$1" && sha256sum ./*deb) | (cd "$2" && sha256sum --check --quiet)
}

packages() { # RELEASE
  local work=$target/packages/build/$1 out=$target/packages/$1
  tools/debroot.sh make-build "$1"
  rm -rf "${work:?}"*
  unpack "$1" "$work.source"
  build "$1" "$work" "$target/packages/cargo/$1"
  lint "$1" "$work"
  [ -z "$twice" ] || build_again "$1" "$work"
  rm -rf "$out" && mkdir -p "$out/debug"
  mv "$work"/*-dbgsym_* "$out/debug"
  cp "$work"/*.{deb,changes,buildinfo} "$out"
  rm -rf "${work:?}"*
  echo "deb: $out"
}

# The second time nothing is built before.
build_again() { # RELEASE FOLDER
  mv "$2.source" "$2.again.source"
  build "$1" "$2.again" "$2.again.cargo"
  same "$2" "$2.again" || { echo "deb: the second build for $1 differs from the first: $2.again, $2" >&2 && exit 1; }
  echo "deb: both builds for $1 are the same"
}

twice=
if [ "${1:-}" = --twice ]; then twice=yes && shift; fi
[ $# -gt 0 ] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 2; }
reason=$(tools/debroot.sh why-not)
[ -z "$reason" ] || { echo "deb: $reason" >&2 && exit 1; }
mkdir -p "$vendor"
cargo vendor --locked --quiet --versioned-dirs "$vendor" >/dev/null
maturin=$(tests/python.sh maturin)
for release in "$@"; do packages "$release"; done
