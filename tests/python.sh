#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# The Python package: its wheels, and its tests in clean environments with the built wheel.
#
#   tests/python.sh wheel      builds the optimized wheel of this machine into target/wheels
#   tests/python.sh build      builds in advance what `test` needs
#   tests/python.sh wheels     builds all wheels, for x86-64 and aarch64, into target/wheels, and inspects them
#   tests/python.sh maturin    prints the path of maturin
#   tests/python.sh test       runs the tests with this machine's Python, 3.11 or newer
#   tests/python.sh pythons    runs them with Python 3.12 and 3.13 where installed, and Debian 13's in a root file system
#   tests/python.sh torch      runs the tests with an installed PyTorch
#   tests/python.sh run REQUIREMENTS COMMAND...
#                              runs COMMAND with the python3 of an environment of these requirements and the package, and
#                              with FRAMESHARE_TOOL, the command of this checkout
#   tests/python.sh with REQUIREMENTS COMMAND...
#                              the same without the package
#
# Prints PASS, FAIL or SKIP for each test. PYTEST has options of pytest, such as PYTEST="-k fork". With FRAMESHARE_IS_BUILT,
# programs are those that `cargo test --workspace` has built. Environments are made once for each list of requirements and
# kept in target/python.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
cd "$repo"
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
crate=crates/frameshare-python
work=$target/python
minimum=11 # of Python 3

skip() { echo "SKIP $1: $2"; }

# Prints the path of an interpreter that can make environments: the first of the candidates with these properties.
interpreter() { # CONDITION CANDIDATE...
  local condition=$1 candidate
  shift
  for candidate in "$@"; do
    "$candidate" -c "import sys, venv, ensurepip; sys.exit(not ($condition))" >/dev/null 2>&1 || continue
    "$candidate" -c 'import os, sys; print(os.path.realpath(sys.executable))' && return
  done
  return 1
}

any_python() {
  interpreter "sys.version_info >= (3, $minimum)" python3 /usr/bin/python3 python3.{11,12,13,14,15}
}

python_of() { # MINOR
  local candidates=("python3.$1")
  if command -v pyenv >/dev/null; then candidates+=("$(pyenv root)/versions/3.$1".*/bin/python3); fi
  interpreter "sys.version_info[:2] == (3, $1)" "${candidates[@]}"
}

# Makes an environment with these requirements where it is missing, and prints its path. Status 75 without a registry.
environment() { # PYTHON REQUIREMENTS [OPTION...]
  local python=$1 requirements=$2 path log
  shift 2
  path=$work/$(basename "$requirements" .txt)-$({ realpath "$python" && cat "$requirements" && echo "$*"; } | sha256sum | cut -c-16)
  mkdir -p "$work"
  (
    flock 9
    [ ! -e "$path/.ready" ] || exit 0
    rm -rf "$path"
    log=$path.log
    # Packages of the system may lack what these tests do not need.
    if "$python" -m venv "$@" "$path" && "$path/bin/pip" install --quiet --disable-pip-version-check -r "$requirements" &&
      { [[ " $* " = *" --system-site-packages "* ]] || "$path/bin/pip" check; }; then
      touch "$path/.ready"
    else
      ! grep -qE 'NewConnectionError|NameResolutionError|Max retries exceeded|Read timed out' "$log" || exit 75
      exit 1
    fi >"$path.log" 2>&1
  ) 9>"$path.lock" || { local status=$? && tail -n 15 "$path.log" >&2 && return $status; }
  echo "$path"
}

# maturin and its tools, and the zig of PyPI, for which maturin searches the path.
build_environment() {
  local python
  python=$(any_python) || { echo "python: no Python 3.$minimum or newer with venv; tools/setup.sh python installs it" >&2 && return 1; }
  environment "$python" "$crate/requirements/build.txt"
}

maturin() { # OPTION...
  (cd "$crate" && PATH=$tools/bin:$PATH CARGO_TARGET_DIR=$target "$tools/bin/maturin" build --locked "$@")
}

maturin_path() {
  local tools
  tools=$(build_environment)
  echo "$tools/bin/maturin"
}

wheel() {
  local tools
  tools=$(build_environment)
  mkdir -p "$target/wheels"
  maturin --release --out "$target/wheels"
}

# The limited interface of 3.11 serves all later versions with a GIL, that of 3.15 all later ones without it; 3.14 without
# a GIL has no limited interface. None of the last two interpreters is needed for its wheel.
wheels() {
  local tools triple out status=0
  tools=$(build_environment)
  out=$work/all
  rm -rf "$out"
  for triple in x86_64 aarch64; do
    [ -d "$(rustc --print sysroot)/lib/rustlib/$triple-unknown-linux-gnu" ] || rustup target add "$triple-unknown-linux-gnu"
    for interface in "" "--no-default-features -i python3.14t" "--no-default-features --features abi3t -i python3.15t"; do
      # shellcheck disable=SC2086  # words
      maturin --release --zig --compatibility manylinux_2_28 --target "$triple-unknown-linux-gnu" --out "$out" $interface
    done
  done
  for file in "$out"/*.whl; do inspect "$file" || status=1; done
  mkdir -p "$target/wheels" && cp "$out"/*.whl "$target/wheels"
  return $status
}

# abi3audit takes the entry that a module exports since 3.15 for a symbol of Python.
uses_stable_interface() { # WHEEL
  { "$tools/bin/abi3audit" --report "$1" || true; } | tee /dev/stderr | python3 -c '
import json, sys
found = [file["result"] for spec in json.load(sys.stdin)["specs"].values() for file in spec["wheel"]]
foreign = [set(one["non_abi3_symbols"]) - {"PyModExport__frameshare"} for one in found]
sys.exit(not found or any(foreign) or any(one["future_abi3_objects"] for one in found))'
}

inspect() { # WHEEL
  local name library status=0 folder
  name=$(basename "$1" .whl)
  folder=$work/inspected
  rm -rf "$folder" && python3 -m zipfile -e "$1" "$folder"
  library=$(echo "$folder"/frameshare/_frameshare*.so)
  if readelf --dynamic "$library" | grep -E 'NEEDED.*(python|cuda|gstreamer)'; then
    echo "FAIL python-wheel-links-libc-alone/$name" && status=1
  else
    echo "PASS python-wheel-links-libc-alone/$name"
  fi
  if "$tools/bin/auditwheel" show "$1" >"$work/audit" 2>&1 && grep -q 'manylinux_2_28' "$work/audit"; then
    echo "PASS python-wheel-auditwheel/$name"
  else
    echo "FAIL python-wheel-auditwheel/$name" && cat "$work/audit" && status=1
  fi
  case $name in
    *abi3*)
      if uses_stable_interface "$1" >"$work/audit" 2>&1; then
        echo "PASS python-wheel-abi3audit/$name"
      else
        echo "FAIL python-wheel-abi3audit/$name" && cat "$work/audit" && status=1
      fi
      ;;
  esac
  return $status
}

# The wheel that is tested: as `cargo build` makes it, so that it costs little.
test_wheel() {
  local tools
  tools=$(build_environment) || return
  rm -rf "$work/wheel"
  maturin --profile dev --out "$work/wheel" >"$work/wheel.log" 2>&1 || { tail -n 30 "$work/wheel.log" >&2 && return 1; }
  # Exporters of the tests, and the simulated driver.
  if [ -z "${FRAMESHARE_IS_BUILT:-}" ]; then
    cargo build --locked --quiet --package frameshare-tools --package frameshare --package gst-plugin-frameshare \
      --package frameshare-tests --lib --bins --example bottom-up-export --example engine-export --example gpu-export || return
    install -D "$target/debug/libgstframeshare.so" -t "$target/gstreamer-1.0"
  fi
  tests/simcuda/install.sh "$target/simcuda" >/dev/null || return
  echo "$work/wheel"/*.whl
}

# Runs the tests, and prints a line for each.
run_tests() { # NAME COMMAND...
  local name=$1 status=0
  shift
  echo "VERSION $name $("$@" -c 'import platform; print(platform.python_version())')"
  # A shell starts commands in the background with SIGINT ignored, and Python's children inherit that.
  # shellcheck disable=SC2086  # words
  FRAMESHARE_TARGET=$target/debug env --default-signal=INT,QUIT timeout --kill-after=10 1800 "$@" -m pytest $crate/tests -q -rpsfE \
    -p no:cacheprovider ${PYTEST:-} >"$work/$name.log" 2>&1 || status=$?
  awk -v name="$name" '
    /^PASSED / { sub(/.*tests\//, ""); print "PASS " name "/" $0; next }
    /^(FAILED|ERROR) / { sub(/.*tests\//, ""); print "FAIL " name "/" $0; next }
    /^SKIPPED / { sub(/^SKIPPED \[[0-9]*\] [^ ]*tests\//, ""); sub(/\.py:[0-9]*/, ".py"); print "SKIP " name "/" $0; next }
    { next }' "$work/$name.log"
  [ $status = 0 ] || { grep -v "^PASSED " "$work/$name.log" | tail -n 150 && return $status; }
}

# Installs the wheel into an environment of that interpreter, and runs the tests there.
test_with() { # NAME PYTHON WHEEL REQUIREMENTS [OPTION...]
  local name=$1 python=$2 wheel=$3 requirements=$crate/requirements/$4.txt status=0 place
  shift 4
  place=$(environment "$python" "$requirements" "$@") || status=$?
  [ $status != 75 ] || { skip "$name" "PyPI, which has the requirements of the tests, cannot be reached" && return; }
  [ $status = 0 ] || return $status
  "$place/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall --no-index "$wheel" || return
  run_tests "$name" "$place/bin/python"
}

# Builds in advance what `test_here` uses, which tries again and reports what failed.
build_in_advance() {
  local python
  python=$(any_python) && test_wheel >/dev/null && environment "$python" "$crate/requirements/test.txt" >/dev/null
}

test_here() {
  local python wheel status=0
  python=$(any_python) || { skip python "there is no Python 3.$minimum or newer with venv and pip" && return; }
  wheel=$(test_wheel) || status=$?
  [ $status != 75 ] || { skip python "PyPI, which has maturin, cannot be reached" && return; }
  [ $status = 0 ] || return $status
  test_with python "$python" "$wheel" test
}

pythons() {
  local python wheel why_not status=0
  wheel=$(test_wheel)
  for minor in 12 13; do
    if python=$(python_of $minor); then
      test_with "python3.$minor" "$python" "$wheel" test || status=1
    else
      skip "python3.$minor" "it is not installed"
    fi
  done
  if python=$(interpreter "sys.version_info >= (3, 14) and not sys._is_gil_enabled()" python3.14t); then
    skip python3.14t "the wheel cp314t is built by make wheels: run crates/frameshare-python/tests with it there"
  fi
  # Debian 13's Python and its packages, without a registry.
  why_not=$(tests/rootfs.sh why-not)
  if [ -n "$why_not" ]; then
    skip python-debian-13 "$why_not"
  else
    rm -rf "$work/unpacked" && python3 -m zipfile -e "$wheel" "$work/unpacked"
    run_tests python-debian-13 tests/rootfs.sh run env PYTHONPATH="$work/unpacked" python3 || status=1
  fi
  return $status
}

torch() {
  local python wheel
  python=$(interpreter "sys.version_info >= (3, $minimum) and __import__('torch')" python3 /usr/bin/python3 python3.{11,12,13,14}) || {
    skip python-torch "no Python 3.$minimum or newer has PyTorch; Debian's is python3-torch"
    return
  }
  wheel=$(test_wheel)
  echo "VERSION torch $("$python" -c 'import torch; print(torch.__version__)')"
  test_with python-torch "$python" "$wheel" torch --system-site-packages
}

# For tests of examples.
run_with() { # REQUIREMENTS COMMAND...
  local wheel place
  wheel=$(test_wheel) || return
  place=$(environment_for "$1") || return
  "$place/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall --no-index "$wheel" || return
  shift
  "$place/bin/pip" list --disable-pip-version-check --format=freeze | sed -n 's/^ray==/VERSION ray /p'
  PATH=$place/bin:$PATH FRAMESHARE_TOOL=$target/debug/frameshare "$@"
}

with() { # REQUIREMENTS COMMAND...
  local place
  place=$(environment_for "$1") || return
  shift
  PATH=$place/bin:$PATH "$@"
}

environment_for() { # REQUIREMENTS
  local python
  python=$(any_python) || { echo "python: no Python 3.$minimum or newer with venv; tools/setup.sh python installs it" >&2 && return 1; }
  environment "$python" "$1"
}

# Without a registry there is nothing to test with.
or_skip() { # COMMAND...
  local status=0
  "$@" || status=$?
  [ $status != 75 ] || { skip "$2" "PyPI, which has its requirements, cannot be reached" && return; }
  return $status
}

case ${1:-} in
  run) shift && or_skip run_with "$@" ;;
  with) shift && or_skip with "$@" ;;
  wheel) wheel ;;
  maturin) maturin_path ;;
  build) build_in_advance || echo "python: not built in advance" ;;
  wheels) wheels ;;
  test) test_here ;;
  pythons) pythons ;;
  torch) torch ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit 2 ;;
esac
