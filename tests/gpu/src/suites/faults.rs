// SPDX-License-Identifier: MIT OR Apache-2.0

//! Failing calls and missing features, injected by the simulated driver (tests/simcuda).

use anyhow::{Context as _, Result, ensure};
use frameshare_gpu_harness::Start;

use super::{Case, Kind, Needs};
use crate::command::{Command, Source};
use crate::peer::{Peer, must_fail};

pub const CASES: &[Case] = &[
    fault("failing-calls-of-an-exporter", failing_calls_of_an_exporter),
    fault("failing-calls-of-a-reader", failing_calls_of_a_reader),
    fault("lost-context", lost_context),
    fault("unknown-code", unknown_code),
    fault("withheld-attributes", withheld_attributes),
    fault("no-driver", no_driver),
];

const fn fault(name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite: "faults", name, seconds: 60, needs: Needs::Simulation, conduct }
}

const SIZE: usize = 1 << 20;
const OUT_OF_MEMORY: i32 = 2;

/// Starts a peer whose driver fails the first use of `call`.
fn failing(call: &str, code: i32) -> Result<Peer> {
    let order = format!("{call}:1:{code}");
    Peer::start(Start { environment: &[("SIMCUDA_FAIL", &order)], ..Start::default() })
}

/// Any allocating or exporting call may fail: the error names it, no partial state remains, and a
/// retry succeeds.
fn failing_calls_of_an_exporter(seed: u64) -> Result<String> {
    let steps = [
        (Kind::Vmm, "cuMemGetAllocationGranularity"),
        (Kind::Vmm, "cuMemCreate"),
        (Kind::Vmm, "cuMemAddressReserve"),
        (Kind::Vmm, "cuMemMap"),
        (Kind::Vmm, "cuMemSetAccess"),
        (Kind::Vmm, "cuMemExportToShareableHandle"),
        (Kind::Pool, "cuMemPoolCreate"),
        (Kind::Pool, "cuMemPoolExportToShareableHandle"),
        (Kind::Pool, "cuMemAllocFromPoolAsync"),
        (Kind::Pool, "cuMemPoolExportPointer"),
        (Kind::Legacy, "cuMemAlloc_v2"),
        (Kind::Legacy, "cuIpcGetMemHandle"),
    ];
    let reader = Peer::new()?;
    for (kind, call) in steps {
        let exporter = failing(call, OUT_OF_MEMORY)?;
        exporter.open(0, true)?;
        let failed = must_fail(kind.share(&exporter, SIZE), call)?;
        ensure!(failed.code == Some(OUT_OF_MEMORY) && failed.text.starts_with(call), "{call}: {failed}");
        let shared = kind.share(&exporter, SIZE).with_context(|| format!("after {call} failed"))?;
        exporter.write(shared.memory, SIZE, seed)?;
        let import = shared.import(&exporter, &reader, kind != Kind::Vmm)?;
        reader.check(import, 0, SIZE, seed)?;
        shared.retire(&exporter, &reader, import)?;
    }
    Ok(format!("{} calls", steps.len()))
}

/// The same for importing calls.
fn failing_calls_of_a_reader(seed: u64) -> Result<String> {
    let steps = [
        (Kind::Vmm, "cuMemImportFromShareableHandle"),
        (Kind::Vmm, "cuMemAddressReserve"),
        (Kind::Vmm, "cuMemMap"),
        (Kind::Vmm, "cuMemSetAccess"),
        (Kind::Pool, "cuMemPoolImportFromShareableHandle"),
        (Kind::Pool, "cuMemPoolSetAccess"),
        (Kind::Pool, "cuMemPoolImportPointer"),
        (Kind::Legacy, "cuIpcOpenMemHandle_v2"),
    ];
    let exporter = Peer::new()?;
    for (kind, call) in steps {
        let reader = failing(call, OUT_OF_MEMORY)?;
        reader.open(0, true)?;
        let shared = kind.share(&exporter, SIZE)?;
        exporter.write(shared.memory, SIZE, seed)?;
        let write = kind != Kind::Vmm;
        let failed = must_fail(shared.import(&exporter, &reader, write), call)?;
        ensure!(failed.code == Some(OUT_OF_MEMORY) && failed.text.starts_with(call), "{call}: {failed}");
        let import =
            shared.import(&exporter, &reader, write).with_context(|| format!("after {call} failed"))?;
        reader.check(import, 0, SIZE, seed)?;
        shared.retire(&exporter, &reader, import)?;
    }
    Ok(format!("{} calls", steps.len()))
}

/// A sticky error code is reported as the loss of the context, by the failing call and all later
/// ones.
fn lost_context(_: u64) -> Result<String> {
    let peer = failing("cuMemsetD8Async", 719)?;
    peer.open(0, true)?;
    let memory = peer.allocate(Source::Vmm, SIZE)?;
    let first = must_fail(peer.fill(memory, 0, SIZE, 1, 0), "a fill that loses the context")?;
    ensure!(first.sticky && first.code == Some(719), "{first}");
    let then = must_fail(peer.fill(memory, 0, SIZE, 1, 0), "a fill in a lost context")?;
    ensure!(then.sticky, "{then}");
    // Freeing resources in a lost context must neither hang nor abort the process.
    peer.drop_memory(memory)?;
    Ok(then.to_string())
}

/// An error code unknown to this program is reported as a number.
fn unknown_code(_: u64) -> Result<String> {
    let peer = failing("cuStreamCreate", 4242)?;
    let failed = must_fail(peer.open(0, true), "a call with an unknown code")?;
    ensure!(failed.code == Some(4242) && failed.text.contains("4242"), "{failed}");
    Ok(failed.to_string())
}

/// The error for a missing feature names the kind and the device; an attribute unknown to the
/// driver counts as missing.
fn withheld_attributes(_: u64) -> Result<String> {
    let lacks = [
        ("vmm", "102", "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"),
        ("vmm", "103:unknown", "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"),
        ("pool", "115", "MEMORY_POOLS_SUPPORTED"),
        ("pool", "119", "MEMPOOL_SUPPORTED_HANDLE_TYPES"),
        ("legacy", "125", "IPC_EVENT_SUPPORTED"),
        ("event", "125:unknown", "IPC_EVENT_SUPPORTED"),
        ("timeline", "122", "CAN_USE_64_BIT_STREAM_MEM_OPS"),
    ];
    for (kind, withheld, attribute) in lacks {
        let peer = Peer::start(Start { environment: &[("SIMCUDA_WITHHOLD", withheld)], ..Start::default() })?;
        peer.open(0, true)?;
        let failed = must_fail(peer.execute(Command::Supports(kind.to_owned())), kind)?;
        let named = failed.text.starts_with(kind) && failed.text.contains("Simulated");
        ensure!(named && failed.text.contains(attribute), "{kind} without {withheld}: {failed}");
    }
    Ok(String::new())
}

/// Without a driver, the error says so.
fn no_driver(_: u64) -> Result<String> {
    let peer =
        Peer::start(Start { environment: &[("LD_LIBRARY_PATH", "/nonexistent")], ..Start::default() })?;
    let failed = must_fail(peer.open(0, true), "opening a device without a driver")?;
    ensure!(failed.code.is_none() && failed.text.starts_with("no usable CUDA driver: "), "{failed}");
    Ok(failed.to_string())
}
