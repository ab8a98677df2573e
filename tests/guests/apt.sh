# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Sourced: runs apt on one source, apart from this machine's own sources, state and architecture.

# Writes the configuration of a folder, which `apt_in` uses, and gets the source's list of packages.
apt_source() { # FOLDER ARCHITECTURE KEYRING SOURCE
  mkdir -p "$1/state/lists/partial" "$1/cache/archives/partial"
  : >"$1/status" # nothing is installed
  echo "deb [arch=$2 signed-by=$3] $4" >"$1/sources.list"
  cat >"$1/apt.conf" <<END
APT::Architecture "$2";
APT::Architectures "$2";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Dir::Etc::sourcelist "$1/sources.list";
Dir::Etc::sourceparts "-";
Dir::State "$1/state";
Dir::State::status "$1/status";
Dir::Cache "$1/cache";
END
  apt_in "$1" apt-get update
}

apt_in() { # FOLDER COMMAND...
  "$2" -qq -c "$1/apt.conf" "${@:3}"
}
