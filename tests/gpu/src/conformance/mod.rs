// SPDX-License-Identifier: MIT OR Apache-2.0

//! Conformance: the rules of the engine's memory and fences, each written once and checked for
//! every kind.
//!
//! A rule sees one kind through the engine's traits: an exporter and a reader, each a process of
//! its own. Each rule has negative controls: an implementation with one [`Defect`], which the rule
//! must detect. Kinds that this machine lacks are skipped, with the reason.

mod broken;
mod bytes;
mod command;
mod fences;
mod handover;
mod memory;
mod sides;
mod worker;

use std::fmt;

use anyhow::{Result, bail};
use frameshare::{FenceKind, MemoryKind};
use frameshare_gpu_harness::order::{self, Expected};
use frameshare_gpu_harness::{Case, Needs};

pub use command::{Command, Defect, Reply};
pub use worker::Worker;

/// The implementation that a rule checks.
#[derive(Clone, Copy)]
struct Subject<K> {
    kind: K,
    /// The defect of a negative control.
    defect: Option<Defect>,
    seed: u64,
}

/// Memory and fence of frames, for rules about both.
type Frames = (MemoryKind, FenceKind);

/// A broken rule, as opposed to a failure of the test itself.
#[derive(Debug)]
struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

/// Returns a [`Violation`] from the rule unless the condition holds.
macro_rules! rule {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::conformance::Violation(format!($($text)+)).into());
        }
    };
}
use rule;

type Check<K> = fn(Subject<K>) -> Result<()>;

/// Checks the rule for the engine's implementation.
fn obeyed<K>(check: Check<K>, kind: K, seed: u64) -> Result<String> {
    check(Subject { kind, defect: None, seed })?;
    Ok(String::new())
}

/// Checks that the rule detects each defect.
fn detected<K: Copy>(check: Check<K>, kind: K, defects: &[Defect], seed: u64) -> Result<String> {
    order::expect(Expected::Any);
    let mut seen = Vec::new();
    for defect in defects {
        match check(Subject { kind, defect: Some(*defect), seed }) {
            Ok(()) => bail!("the rule does not detect the defect {defect:?}"),
            Err(error) => match error.downcast_ref::<Violation>() {
                Some(violation) => seen.push(format!("{defect:?}: {violation}")),
                None => return Err(error.context(format!("{defect:?}"))),
            },
        }
    }
    Ok(seen.join("; "))
}

/// Defines the cases of one rule: for each kind, the rule and its negative controls.
macro_rules! cases {
    ($check:path, $name:literal, $needs:ident, $([$label:literal, $kind:expr]),+, detects $defects:expr) => {
        &[$(
            Case {
                suite: "conformance",
                name: concat!($label, "-", $name),
                seconds: 60,
                needs: Needs::$needs,
                conduct: |seed| obeyed($check, $kind, seed),
            },
            Case {
                suite: "conformance-controls",
                name: concat!($label, "-", $name),
                seconds: 60,
                needs: Needs::$needs,
                conduct: |seed| detected($check, $kind, &$defects, seed),
            },
        )+] as &[Case]
    };
}

/// Cases of a rule for host memory.
macro_rules! host {
    ($check:path, $name:literal, $($defect:ident)+) => {
        cases!($check, $name, NoGpu, ["host", MemoryKind::Host], detects [$(Defect::$defect),+])
    };
}

/// Cases of a rule for memory with a descriptor of its own.
macro_rules! vmm {
    ($check:path, $name:literal, $($defect:ident)+) => {
        cases!($check, $name, Nothing, ["vmm", MemoryKind::Vmm], detects [$(Defect::$defect),+])
    };
}

/// Cases of a rule for every kind of GPU memory.
macro_rules! gpu {
    ($check:path, $name:literal, $($defect:ident)+) => {
        cases!($check, $name, Nothing,
            ["vmm", MemoryKind::Vmm], ["pool", MemoryKind::Pool], ["legacy", MemoryKind::Legacy],
            detects [$(Defect::$defect),+])
    };
}

/// Cases of a rule for host frames, which need no fence.
macro_rules! none {
    ($check:path, $name:literal, $($defect:ident)+) => {
        cases!($check, $name, NoGpu, ["none", FenceKind::None], detects [$(Defect::$defect),+])
    };
}

/// Cases of a rule for every kind of fence of GPU frames.
macro_rules! fences {
    ($check:path, $name:literal, $($defect:ident)+) => {
        cases!($check, $name, Nothing,
            ["event", FenceKind::Event], ["timeline", FenceKind::Timeline],
            detects [$(Defect::$defect),+])
    };
}

/// All cases, by rule.
pub const RULES: &[&[Case]] = &[
    host!(memory::fresh_memory_is_zero, "fresh-memory-is-zero", Dirty),
    gpu!(memory::fresh_memory_is_zero, "fresh-memory-is-zero", Dirty),
    host!(memory::allocation_has_requested_size, "allocation-has-requested-size", Short),
    gpu!(memory::allocation_has_requested_size, "allocation-has-requested-size", Short),
    host!(memory::import_shows_allocation, "import-shows-allocation", Misdirected),
    gpu!(memory::import_shows_allocation, "import-shows-allocation", Misdirected),
    host!(memory::handle_names_one_allocation, "handle-names-one-allocation", Duplicated),
    gpu!(memory::handle_names_one_allocation, "handle-names-one-allocation", Duplicated),
    host!(memory::import_can_be_repeated, "import-can-be-repeated", SingleUse),
    gpu!(memory::import_can_be_repeated, "import-can-be-repeated", SingleUse),
    // CUDA leaves this undefined for pool and legacy memory: their imports are closed first.
    host!(memory::import_outlives_allocation, "import-outlives-allocation", Scrubbed),
    vmm!(memory::import_outlives_allocation, "import-outlives-allocation", Scrubbed),
    host!(memory::import_survives_killed_exporter, "import-survives-killed-exporter", Orphaned),
    gpu!(memory::import_survives_killed_exporter, "import-survives-killed-exporter", Orphaned),
    host!(memory::readers_write_is_refused_or_shared, "readers-write-is-refused-or-shared", Private),
    gpu!(memory::readers_write_is_refused_or_shared, "readers-write-is-refused-or-shared", Private),
    host!(memory::invalid_handle_is_an_error, "invalid-handle-is-an-error", Credulous),
    gpu!(memory::invalid_handle_is_an_error, "invalid-handle-is-an-error", Credulous),
    host!(memory::excessive_size_is_an_error, "excessive-size-is-an-error", Overcommitted),
    gpu!(memory::excessive_size_is_an_error, "excessive-size-is-an-error", Overcommitted),
    none!(fences::ready_follows_writers_work, "ready-follows-writers-work", NeverReady),
    fences!(fences::ready_follows_writers_work, "ready-follows-writers-work", ReadyEarly NeverReady),
    none!(fences::release_follows_readers_work, "release-follows-readers-work", NeverReleased),
    fences!(fences::release_follows_readers_work, "release-follows-readers-work", ReleasedEarly NeverReleased),
    none!(fences::entries_signal_in_any_order, "entries-signal-in-any-order", NeverReady NeverReleased),
    fences!(fences::entries_signal_in_any_order, "entries-signal-in-any-order", NeverReady NeverReleased),
    none!(fences::signal_survives_killed_exporter, "signal-survives-killed-exporter", NotReadyAfterDeath),
    fences!(fences::signal_survives_killed_exporter, "signal-survives-killed-exporter", NotReadyAfterDeath),
    fences!(fences::stream_waits_for_ready, "stream-waits-for-ready", NoWait),
    fences!(fences::reused_entry_is_pending, "reused-entry-is-pending", ReadyOnce),
    fences!(fences::entries_are_released_separately, "entries-are-released-separately", EntriesSwapped),
    fences!(fences::unknown_entry_is_an_error, "unknown-entry-is-an-error", ErrorsHidden),
    &[Case {
        suite: "conformance",
        name: "host-none-no-frame-is-torn",
        seconds: 60,
        needs: Needs::NoGpu,
        conduct: |seed| obeyed(handover::no_frame_is_torn, (MemoryKind::Host, FenceKind::None), seed),
    }],
    cases!(handover::no_frame_is_torn, "no-frame-is-torn", Nothing,
        ["vmm-event", (MemoryKind::Vmm, FenceKind::Event)],
        ["vmm-timeline", (MemoryKind::Vmm, FenceKind::Timeline)],
        ["pool-event", (MemoryKind::Pool, FenceKind::Event)],
        ["pool-timeline", (MemoryKind::Pool, FenceKind::Timeline)],
        ["legacy-event", (MemoryKind::Legacy, FenceKind::Event)],
        ["legacy-timeline", (MemoryKind::Legacy, FenceKind::Timeline)],
        detects [Defect::NoWait, Defect::ReleasedEarly]),
];
