# SPDX-License-Identifier: MIT OR Apache-2.0
# Everything a user or a contributor types. Each target installs what it needs and lacks, then builds, then runs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# sudo and cron leave out where rustup puts cargo
export PATH := $(PATH):$(HOME)/.cargo/bin

PREFIX ?= /usr/local
LIBDIR ?=
BUILD ?= build
DESTDIR ?=
CLIP ?=
LOOPS ?=
BENCH ?=
VERSION ?=
SECONDS ?= 60
MINUTES ?= 30
HOURS ?= 1
ADVISORIES ?=
SHARD ?=
PROGRAMS ?=
RELEASES ?= bookworm trixie noble

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the plugin and the demo, optimized
	@tools/setup.sh build
	cargo build --release --locked --package gst-plugin-frameshare --package frameshare-demo
	@target="$${CARGO_TARGET_DIR:-target}"; install -D "$$target/release/libgstframeshare.so" -t "$$target/gstreamer-1.0"

.PHONY: demo
demo: build ## one process decodes a video, three others read its frames (CLIP=, LOOPS=)
	@tools/setup.sh play
	@clip="$(CLIP)"; [ -n "$$clip" ] || clip=$$(tools/clip.sh); target=$$(realpath "$${CARGO_TARGET_DIR:-target}"); \
	[ -d "$${XDG_RUNTIME_DIR:-}" ] || export XDG_RUNTIME_DIR=$$(mktemp -d); \
	export GST_PLUGIN_PATH=$$target/gstreamer-1.0$${GST_PLUGIN_PATH:+:$$GST_PLUGIN_PATH}; \
	"$$target/release/frameshare-demo" $(if $(LOOPS),--loops $(LOOPS)) "$$clip"

# PROGRAMS=folder runs programs that are there already.
.PHONY: ingest
ingest: ## four cameras without hardware: received and decoded once, recorded, analyzed, shown on a page
	@tools/setup.sh build play ingest
	$(if $(PROGRAMS),,cargo build --release --locked --package camera-ingest --package rtsp-cameras)
	@examples/camera-ingest/start.sh "$(or $(PROGRAMS),$${CARGO_TARGET_DIR:-target}/release)"

# It builds as `make test` does, which so has less to build afterwards. A hang ends after 10 minutes.
.PHONY: check
check: ## the quick check after an edit: format, clippy, units, the engine's tests; 2 minutes on 2 cores
	@tools/setup.sh test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	timeout 600 cargo test --workspace --locked --lib --test engine --test types --test header

.PHONY: test
test: ## run every check and test that this machine can run
	@tools/setup.sh test
	@tests/all.sh

.PHONY: lint
lint: ## check formatting, clippy, documentation, scripts and language
	@tools/setup.sh test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	git grep --untracked -lIE '^#!/bin/(ba)?sh' | xargs shellcheck tests/check.sh tests/guests/apt.sh tests/gpu/{enter-runtime,decode,commands,mps}.sh
	tools/charts.py --check
	git ls-files '*.md' Makefile deny.toml meson.build .ci crates docs examples plugins tests tools | xargs tools/check-language

# Built apart: under `--cfg loom` the words of the queue's tests are loom's.
.PHONY: loom
loom: ## search the queue's memory orderings for races
	@tools/setup.sh build
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target}/loom \
		cargo test --release --locked --package frameshare-queue --lib

# A mutant takes seconds if the simulator or a unit test catches it, else a minute. SHARD=0/8 runs an eighth.
.PHONY: mutants
mutants: ## change decisions of exporter and queue one by one: tests must fail (SHARD=0/8)
	@tools/setup.sh build mutants
	tests/simulation/mutants.py $(if $(SHARD),--shard $(SHARD))

.PHONY: test-long
test-long: ## kill, stop and restart ten times as often as `make test` does
	@tools/setup.sh test
	FRAMESHARE_TIMES=10 cargo test --locked --package frameshare-tests --test faults --test lifecycle
	FRAMESHARE_TIMES=10 cargo test --locked --package frameshare-gpu-engine --test simulated -- named_frames seeded_suites_pass

.PHONY: fuzz
fuzz: ## fuzz what comes from other processes (SECONDS=60 for each of eight targets)
	@tools/setup.sh build fuzz record
	tools/results.py run fuzz tests/fuzz/run.sh $(SECONDS)

.PHONY: rivals
rivals: ## kill, stop and restart GStreamer's own elements and ours in the same ways, some 2 minutes
	@tools/setup.sh build play
	@tools/results.py run rivals tests/rivals/run.sh lossless latest unixfd

.PHONY: sanitize
sanitize: ## run engine and plugin under AddressSanitizer, the engine under ThreadSanitizer
	@tools/setup.sh test sanitize
	tools/results.py run sanitize tests/sanitize.sh

# A failing run is made small and printed, with the command that repeats it. Each outcome must be reached. A new seed each
# time, unless SEED=1 or another one is given.
.PHONY: simulate
simulate: ## run the engine's decisions from seeds, under simulated time (HOURS=1, SEED=)
	@tools/setup.sh build record
	cargo build --release --locked --package frameshare-simulation --bin simulate
	@target="$${CARGO_TARGET_DIR:-target}"; \
	tools/results.py run simulate "$$target/release/simulate" hours $(HOURS) $(if $(SEED),--seed $(SEED)) --output "$$target"

.PHONY: enumerate
enumerate: ## try all runs of an exporter and a reader in small worlds, with two deviations from the order of tasks
	@tools/setup.sh build
	cargo build --release --locked --package frameshare-simulation --bin simulate
	@target="$${CARGO_TARGET_DIR:-target}"; \
	for world in backlog retirement trimming; do \
		"$$target/release/simulate" --world $$world enumerate 3600 --require-all --output "$$target" || exit; \
	done

# A failing program is made small and printed; `gpu-programs run FILE` runs it again. SEED=1 begins the seeds elsewhere.
.PHONY: simulate-gpu
simulate-gpu: ## run random programs on the simulated GPU driver, and check the order of all accesses (HOURS=1, SEED=1)
	@tools/setup.sh test record
	cargo build --workspace --locked --bins --lib --examples
	@target="$${CARGO_TARGET_DIR:-target}"; tests/simcuda/install.sh "$$target/simcuda"; \
	LD_LIBRARY_PATH=$$(realpath "$$target/simcuda") tools/results.py run simulate-gpu \
		"$$target/debug/gpu-programs" time $$(python3 -c 'print(round(3600 * $(HOURS)))') $(or $(SEED),1)

.PHONY: simulate-elements
simulate-elements: ## run random streams through the elements and through a queue, also on GStreamer 1.26 (HOURS=1, SEED=1)
	@tools/setup.sh test record
	@program=$$(cargo test --workspace --locked --no-run --test queue --message-format=json \
		| sed -n 's/.*"executable":"\([^"]*\/queue-[^"]*\)".*/\1/p'); \
	run=(env SECONDS=$$(python3 -c 'print(round(3600 * $(HOURS)))') SEED=$(or $(SEED),1) \
		"$$program" --ignored --nocapture programs_pass_for_a_time); \
	why_not=$$(tests/rootfs.sh why-not); \
	if [ -n "$$why_not" ]; then echo "SKIP simulate-elements/1.26: $$why_not"; exec tools/results.py run simulate-elements "$${run[@]}"; fi; \
	tools/results.py run simulate-elements/1.26 tests/rootfs.sh run "$${run[@]}" & \
	status=0; tools/results.py run simulate-elements "$${run[@]}" || status=1; wait $$! || status=1; exit $$status

.PHONY: soak
soak: ## the long run: 8 streams, 24 readers that come, go and are killed (MINUTES=30)
	@tools/setup.sh build record
	cargo build --release --locked --package frameshare-tests --bins
	tools/results.py run soak "$${CARGO_TARGET_DIR:-target}/release/soak" $(MINUTES)

# Results are those of tests/soak.rs, which prints them.
.PHONY: soak-ingest
soak-ingest: ## 8 odd cameras of the ingest demo, a fault every 10 s, and a comparison of all frames (MINUTES=30)
	@tools/setup.sh build play ingest soak
	cargo build --release --locked --package camera-ingest --package rtsp-cameras
	@# A small disk of its own, which can be filled, where users can make one.
	@disk=$$(mktemp -d); trap 'rmdir "$$disk"' EXIT; \
	on_disk=(unshare --user --map-root-user --mount sh -c 'mount -t tmpfs -o size=1g tmpfs "$$0" && TMPDIR=$$0 exec "$$@"' "$$disk"); \
	"$${on_disk[@]}" true || on_disk=(); \
	MINUTES=$(MINUTES) tools/results.py run soak-ingest "$${on_disk[@]}" \
		cargo test --release --locked --package camera-ingest --test soak -- --ignored --nocapture

.PHONY: audit
audit: ## check licenses, sources, dependencies between crates and advisories (ADVISORIES=newest or a clone of RustSec's)
	@tools/setup.sh audit
	cargo deny --all-features check --hide-inclusion-graph --allow unused-wrapper bans licenses sources
	cargo deny --manifest-path tests/rivals/iceoryx2/Cargo.toml check --hide-inclusion-graph licenses sources
	@ADVISORIES="$(ADVISORIES)" tools/advisories.sh

# BENCH='--rounds 1 --sizes 320x240' and the like: `target/release/frameshare-bench --help` lists them.
.PHONY: bench
bench: ## measure against GStreamer's own elements, PipeWire and iceoryx2, some 30 minutes (BENCH=options)
	@tools/setup.sh build play
	@tests/bench/run.sh $(BENCH)

# Callgrind counts: no load of the machine changes the figures.
.PHONY: frame-cost
frame-cost: ## count instructions and cache lines of code of one frame, and compare them with the last count
	@tools/setup.sh build play test
	@tests/bench/frame-cost.py

# Two idle cores: other load widens the spread, which the tables state.
.PHONY: bench-table
bench-table: ## repeat the runs behind docs/performance.md and keep their raw figures, some 6 minutes
	@tools/setup.sh build play
	@tests/bench/table.sh

.PHONY: charts
charts: ## write the charts and tables of docs/performance.md and README.md from the raw figures
	@tools/charts.py

# On the GPU machine: `.gpu` is packed by `make gpu-bundle`. BENCH='--readers 1 --rounds 2' and the like shorten it.
.PHONY: bench-python
bench-python: ## measure frames in several Python processes on a GPU, some 6 minutes (BENCH=options)
	@BENCH="$(BENCH)" tests/gpu/run python-bench

.PHONY: install
install: ## build and install (PREFIX=/usr/local, LIBDIR=, DESTDIR=)
	@tools/setup.sh build install
	@if [ -d "$(BUILD)/meson-info" ]; then act=configure; else act=setup; fi; \
		meson $$act "$(BUILD)" --prefix="$(PREFIX)" $(if $(LIBDIR),--libdir="$(LIBDIR)")
	meson compile -C "$(BUILD)"
	DESTDIR="$(DESTDIR)" meson install --no-rebuild -C "$(BUILD)"

.PHONY: deb
deb: ## build Debian packages for Debian 12, Debian 13 and Ubuntu 24.04 (RELEASES="bookworm trixie noble"; needs root)
	@tools/setup.sh build rootfs python
	@for release in $(RELEASES); do tools/results.py run deb/$$release tools/deb.sh $$release; done

.PHONY: test-packages
test-packages: ## install, use and purge these packages in fresh root file systems (RELEASES=; needs root)
	@tools/setup.sh record
	@status=0; for release in $(RELEASES); do \
		tools/results.py run test-packages/$$release tests/packages.sh $$release || status=1; done; exit $$status

.PHONY: tool-musl
tool-musl: ## build the command frameshare as a static binary, without CUDA, and try it
	@tools/setup.sh record
	@tools/results.py run tool-musl tests/tool-musl.sh

.PHONY: wheel
wheel: ## build the Python package for this machine into target/wheels
	@tools/setup.sh build python
	@tests/python.sh wheel

.PHONY: wheels
wheels: ## build the wheels of all Python versions, for x86-64 and aarch64, and inspect them
	@tools/setup.sh build python
	@tools/results.py run wheels tests/python.sh wheels

.PHONY: test-python
test-python: ## test the Python package in a clean environment
	@tools/setup.sh build python
	@tests/python.sh test

.PHONY: test-guests
test-guests: ## run what depends on the kernel in virtual machines with kernels from 5.10 on (KERNELS=; needs root)
	@tools/setup.sh record
	@status=0; for kernel in $(or $(KERNELS),$$(tests/guests/kernels.sh list)); do \
		tools/results.py run test-guests/$$kernel tests/guests/all.sh $$kernel || status=1; done; exit $$status

.PHONY: test-arm64
test-arm64: ## run the same for arm64, cross-built, in virtual machines with pages of 4 and 16 KiB (KERNELS=; needs root)
	@tools/setup.sh record
	@tools/results.py run test-arm64 tests/guests/arm64.sh $(KERNELS)

.PHONY: test-dmabuf
test-dmabuf: ## run dma-bufs in virtual machines with devices that need no hardware (KERNELS=; needs root)
	@tools/setup.sh record
	@tools/results.py run test-dmabuf tests/guests/dmabuf.sh $(KERNELS)

.PHONY: test-pythons
test-pythons: ## the same with Python 3.12, 3.13 and Debian 13's
	@tools/setup.sh build python
	@tools/results.py run test-pythons tests/python.sh pythons

.PHONY: test-torch
test-torch: ## the same with an installed PyTorch, or Debian's
	@tools/setup.sh build python torch
	@tools/results.py run test-torch tests/python.sh torch

.PHONY: test-ray
test-ray: ## test the example of a Ray cluster, three nodes on this machine, some 3 minutes
	@tools/setup.sh build python network
	@tools/results.py run test-ray tests/python.sh run examples/ray-analytics/requirements.txt python3 -m pytest -q -p no:cacheprovider examples/ray-analytics/tests

.PHONY: test-network
test-network: ## test what leaves a machine or a container, between namespaces (needs root)
	@tools/setup.sh test network
	cargo build --locked --package gst-plugin-frameshare --package frameshare-tools --package camera-ingest --package frameshare \
		--lib --bins --example gpu-export --example gpu-read
	@target="$${CARGO_TARGET_DIR:-target}"; install -D "$$target/debug/libgstframeshare.so" -t "$$target/gstreamer-1.0"; \
		tests/simcuda/install.sh "$$target/simcuda" >/dev/null
	@status=0; tools/results.py run test-network/rtsp tests/network/rtsp.py || status=1; \
		tools/results.py run test-network/containers tests/python.sh with tests/network/containers.txt tests/network/containers.py || status=1; \
		exit $$status

.PHONY: test-page
test-page: ## test the page of the camera ingest demo in headless Chromium, some 50 s
	@tools/setup.sh page
	@tools/results.py run test-page tests/page/run.sh test

.PHONY: bench-ingest
bench-ingest: ## measure the camera ingest demo with 16 cameras: CPU of each role, some 2 minutes
	@tools/setup.sh page
	@tests/page/run.sh bench

.PHONY: docs
docs: build ## build the documentation site into target/site: the manual, and references of Rust, C and Python
	@tools/setup.sh docs
	@tools/results.py run docs tools/docs.sh

.PHONY: semver
semver: ## compare the crates' interfaces with those of the last release tag, some minutes the first time
	@tools/setup.sh record
	@tools/results.py run semver tools/semver.sh

.PHONY: release-rehearsal
release-rehearsal: ## set version VERSION, commit and tag in a clone that is removed (default: the present version)
	@tools/release.sh --dry-run "$(or $(VERSION),$$(tools/version.py check))"

.PHONY: gpu-bundle
gpu-bundle: ## pack what a GPU host without packages needs into .gpu/
	@tools/setup.sh build
	tests/gpu/bundle.sh

.PHONY: clean
clean: ## remove what was built and fetched
	rm -rf target build .demo .gpu
