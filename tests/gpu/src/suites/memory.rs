// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory kinds: behavior of CUDA beyond the rules in [`crate::conformance`], and error codes.

use anyhow::{Context as _, Result, ensure};

use super::{Case, Kind, case, require};
use crate::command::{Command, Source};
use crate::peer::{Peer, Token, must_fail};
use crate::words::Words;

const SUITE: &str = "memory";

pub const CASES: &[Case] = &[
    case(SUITE, "handed-in-context", handed_in_context),
    case(SUITE, "rectangles", rectangles),
    case(SUITE, "vmm-read-only", vmm_read_only),
    case(SUITE, "vmm-twice-and-own", vmm_twice_and_own),
    case(SUITE, "vmm-wrong-descriptor-or-size", vmm_wrong_descriptor_or_size),
    case(SUITE, "pool-twice", pool_twice),
    case(SUITE, "pool-order-of-freeing", pool_order_of_freeing),
    case(SUITE, "legacy-own-handle", legacy_own_handle),
    case(SUITE, "legacy-second-context", legacy_second_context),
    case(SUITE, "legacy-of-two-exporters-in-two-contexts", legacy_two_contexts),
    case(SUITE, "legacy-twice", legacy_twice),
    case(SUITE, "adopted", adopted),
    case(SUITE, "adopted-at-a-reused-address", adopted_at_a_reused_address),
    case(SUITE, "adopted-refusals", adopted_refusals),
];

const SIZE: usize = 3 << 20;

// Expected error codes were measured on an H200 with driver 580; the simulated driver was made to
// match.
const INVALID_VALUE: i32 = 1;
const INVALID_CONTEXT: i32 = 201;
const INVALID_HANDLE: i32 = 400;
const ILLEGAL_ADDRESS: i32 = 700;
const NOT_SUPPORTED: i32 = 801;
const UNKNOWN: i32 = 999;

/// Non-primary contexts of another library, as GStreamer's, work on both sides for every kind.
fn handed_in_context(seed: u64) -> Result<String> {
    for kind in Kind::ALL {
        let (exporter, reader) = (Peer::start(Default::default())?, Peer::start(Default::default())?);
        exporter.open(0, false)?;
        reader.open(0, false)?;
        let shared = kind.share(&exporter, SIZE).context(kind.name())?;
        exporter.write(shared.memory, SIZE, seed)?;
        let import = shared.import(&exporter, &reader, true).context(kind.name())?;
        reader.check(import, 0, SIZE, seed).context(kind.name())?;
        shared.retire(&exporter, &reader, import)?;
    }
    Ok(String::new())
}

/// Rows are copied between different pitches, and the bytes between rows are unchanged.
fn rectangles(seed: u64) -> Result<String> {
    let peer = Peer::new()?;
    let (from, to) = (peer.allocate(Source::Legacy, SIZE)?, peer.allocate(Source::Legacy, SIZE)?);
    peer.write(from, SIZE, seed)?;
    peer.fill(to, 0, SIZE, 7, 0)?;
    let (width, height, from_pitch, to_pitch) = (1000, 500, 1000, 1536);
    peer.execute(Command::CopyRows { to, to_pitch, from, from_pitch, width, height, stream: 0 })?;
    for row in [0, 1, height / 2, height - 1] {
        peer.check_part(to, row * to_pitch, width, seed, row * from_pitch)?;
        let gap = peer.capture(to, row * to_pitch + width, to_pitch - width, 0)?;
        peer.finish(0)?;
        ensure!(peer.differs_from_fill(gap, 7)? == 0, "the copy wrote between rows");
    }
    Ok(String::new())
}

/// Memory imported for reading cannot be written. A memset is refused and the context stays usable;
/// a kernel fails when it runs and loses the reader's context. Exporter and data are unaffected.
fn vmm_read_only(seed: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    let shared = Kind::Vmm.share(&exporter, SIZE)?;
    exporter.write(shared.memory, SIZE, seed)?;
    let import = shared.import(&exporter, &reader, false)?;
    reader.check(import, 0, SIZE, seed)?;

    let refused = must_fail(reader.fill(import, 0, SIZE, 0, 0), "a memset of memory imported for reading")?;
    ensure!(refused.code == Some(INVALID_VALUE) && !refused.sticky, "{refused}");
    reader.finish(0)?;
    reader.check(import, 0, SIZE, seed)?;

    let how = reader.spoil(import, 0)?;
    reader.resume()?;
    let lost = must_fail(reader.finish(0), "a write to memory imported for reading")?;
    ensure!(lost.code == Some(ILLEGAL_ADDRESS) && lost.sticky, "{how}: {lost}");
    let after = must_fail(reader.stream(), "a new stream in a lost context")?;
    ensure!(after.sticky, "{after}");

    exporter.check(shared.memory, 0, SIZE, seed)?;
    exporter.write(shared.memory, SIZE, seed + 1)?;
    exporter.check(shared.memory, 0, SIZE, seed + 1)?;
    Ok(format!("{refused}; by {how}: {lost}"))
}

/// One descriptor imported twice into a process, and into the exporting process, yields the same
/// memory.
fn vmm_twice_and_own(seed: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    let shared = Kind::Vmm.share(&exporter, SIZE)?;
    exporter.write(shared.memory, SIZE, seed)?;
    let own = shared.import(&exporter, &exporter, false)?;
    exporter.check(own, 0, SIZE, seed)?;
    let (first, second) =
        (shared.import(&exporter, &reader, false)?, shared.import(&exporter, &reader, false)?);
    reader.check(first, 0, SIZE, seed)?;
    reader.drop_memory(first)?;
    reader.check(second, 0, SIZE, seed)?;
    Ok(String::new())
}

/// A descriptor that is not CUDA's and a wrong allocation size produce errors without further
/// effects.
fn vmm_wrong_descriptor_or_size(_: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    let shared = Kind::Vmm.share(&exporter, SIZE)?;
    let size = shared.import_size()?;
    let foreign = Token { bytes: Vec::new(), fd: Some(Words::create(512)?) };
    let descriptor =
        must_fail(reader.import(Source::Vmm, &foreign, size, false), "a descriptor that is not CUDA's")?;
    let double = must_fail(reader.import(Source::Vmm, &shared.token, size * 2, false), "twice the size")?;
    let odd = must_fail(
        reader.import(Source::Vmm, &shared.token, size - 4096, false),
        "a size that is not a multiple of the granularity",
    )?;
    ensure!(descriptor.code == Some(UNKNOWN), "a descriptor that is not CUDA's: {descriptor}");
    ensure!(double.code == Some(NOT_SUPPORTED), "twice the size: {double}");
    ensure!(odd.code == Some(INVALID_VALUE), "a size that is not a multiple of the granularity: {odd}");
    let import = reader.import(Source::Vmm, &shared.token, size, false)?;
    reader.drop_memory(import)?;
    Ok(format!("descriptor: {descriptor}; double: {double}; odd: {odd}"))
}

/// A second import of one pointer is refused, also through a second import of the pool, until the
/// first was freed and its stream has reached the free.
fn pool_twice(seed: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    let shared = Kind::Pool.share(&exporter, SIZE)?;
    exporter.write(shared.memory, SIZE, seed)?;
    let Source::Pool(pool) = shared.source else { unreachable!("the source of a pool's memory") };
    let imported = Source::Pool(reader.import_pool(&exporter, pool)?);
    let import = || reader.import(imported, &shared.token, SIZE, true);
    let first = import()?;
    must_fail(import(), "a second import")?;
    must_fail(
        shared.import(&exporter, &reader, true),
        "a second import through a second import of the pool",
    )?;
    reader.check(first, 0, SIZE, seed)?;

    reader.hold(0)?;
    reader.execute(Command::Free { memory: first, stream: 0 })?;
    must_fail(import(), "an import while the first is being freed")?;
    reader.resume()?;
    reader.finish(0)?;
    let second = import()?;
    reader.check(second, 0, SIZE, seed)?;
    // Dropping frees the import too.
    reader.drop_memory(second)?;
    let third = import()?;
    reader.check(third, 0, SIZE, seed)?;
    shared.retire(&exporter, &reader, third)?;
    Ok(String::new())
}

/// The reader frees on its stream and signals; the exporter observes the signal and frees; both
/// continue with new memory.
fn pool_order_of_freeing(seed: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "event")?;
    let done = exporter.event(true)?;
    let seen = reader.open_event(&exporter, done)?;
    for round in 0..3 {
        let shared = Kind::Pool.share(&exporter, SIZE)?;
        exporter.write(shared.memory, SIZE, seed + round)?;
        let import = shared.import(&exporter, &reader, true)?;
        reader.check(import, 0, SIZE, seed + round)?;
        reader.hold(0)?;
        reader.execute(Command::Free { memory: import, stream: 0 })?;
        reader.record(seen, 0)?;
        ensure!(!exporter.event_ready(done)?, "the fence behind the reader's free was signaled before it");
        reader.resume()?;
        reader.finish(0)?;
        ensure!(exporter.event_ready(done)?, "the fence behind the reader's free was not signaled");
        exporter.execute(Command::Free { memory: shared.memory, stream: 0 })?;
        exporter.finish(0)?;
    }
    Ok(String::new())
}

/// A process cannot open its own legacy handle.
fn legacy_own_handle(_: u64) -> Result<String> {
    let exporter = Peer::new()?;
    let shared = Kind::Legacy.share(&exporter, SIZE)?;
    let failed = must_fail(shared.import(&exporter, &exporter, true), "opening the process's own handle")?;
    ensure!(failed.code == Some(INVALID_CONTEXT) && !failed.sticky, "{failed}");
    Ok(failed.to_string())
}

/// Only one context of a process can open the handles of one exporter's device.
fn legacy_second_context(seed: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    let shared = Kind::Legacy.share(&exporter, SIZE)?;
    exporter.write(shared.memory, SIZE, seed)?;
    let import = shared.import(&exporter, &reader, true)?;
    reader.open(0, false)?;
    let failed = must_fail(shared.import(&exporter, &reader, true), "opening a handle in a second context")?;
    ensure!(failed.code == Some(INVALID_HANDLE) && !failed.sticky, "{failed}");
    reader.execute(Command::Choose(0))?;
    reader.check(import, 0, SIZE, seed)?;
    Ok(failed.to_string())
}

/// Handles of two exporters can be opened in two contexts of one process.
fn legacy_two_contexts(seed: u64) -> Result<String> {
    let (first, second, reader) = (Peer::new()?, Peer::new()?, Peer::new()?);
    for (context, exporter) in [(0, &first), (1, &second)] {
        if context > 0 {
            reader.open(0, false)?;
        }
        let shared = Kind::Legacy.share(exporter, SIZE)?;
        exporter.write(shared.memory, SIZE, seed)?;
        let import = shared.import(exporter, &reader, true)?;
        reader.check(import, 0, SIZE, seed)?;
    }
    Ok(String::new())
}

/// Opening a handle twice yields one address, which stays mapped until both are closed.
fn legacy_twice(seed: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    let shared = Kind::Legacy.share(&exporter, SIZE)?;
    exporter.write(shared.memory, SIZE, seed)?;
    let first = shared.import(&exporter, &reader, true)?;
    let second = shared.import(&exporter, &reader, true)?;
    ensure!(reader.address(first)? == reader.address(second)?, "two addresses for one handle");
    reader.drop_memory(first)?;
    reader.check(second, 0, SIZE, seed)?;
    shared.retire(&exporter, &reader, second)?;
    Ok(String::new())
}

/// Adopted memory is exported from an address inside it, and read at the same offset elsewhere.
fn adopted(seed: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "legacy")?;
    let memory = exporter.allocate(Source::Legacy, SIZE)?;
    exporter.write(memory, SIZE, seed)?;
    let inside = 4096 + 256;
    let found = exporter.export_adopted(memory, inside)?;
    ensure!(found.offset == inside, "offset {} instead of {inside}", found.offset);
    ensure!(found.size >= SIZE, "a block of {} bytes holds {SIZE}", found.size);
    let import = reader.import(Source::Legacy, &found.handle, found.size, true)?;
    reader.check_part(import, found.offset, SIZE - inside, seed, inside)?;
    reader.drop_memory(import)?;
    exporter.drop_memory(memory)?;
    Ok(String::new())
}

/// A reused address refers to another allocation: another ID, another handle, other content.
fn adopted_at_a_reused_address(seed: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "legacy")?;
    let mut memory = exporter.allocate(Source::Legacy, SIZE)?;
    let mut reused = 0;
    for round in 0..8 {
        exporter.write(memory, SIZE, seed + round)?;
        let before = exporter.export_adopted(memory, 0)?;
        let import = reader.import(Source::Legacy, &before.handle, before.size, true)?;
        reader.check(import, 0, SIZE, seed + round)?;
        reader.drop_memory(import)?;

        let address = exporter.address(memory)?;
        exporter.drop_memory(memory)?;
        memory = exporter.allocate(Source::Legacy, SIZE)?;
        let after = exporter.export_adopted(memory, 0)?;
        ensure!(
            before.buffer_id != after.buffer_id,
            "two allocations with the buffer id {}",
            after.buffer_id
        );
        if exporter.address(memory)? == address {
            reused += 1;
            ensure!(before.handle.bytes != after.handle.bytes, "two allocations with one handle");
        }
    }
    ensure!(reused > 0, "no address was reused, so the case tested nothing");
    Ok(format!("{reused} of 8 addresses were reused"))
}

/// Memory that legacy handles cannot share is refused before it is announced to a reader.
fn adopted_refusals(_: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    let mut reasons = Vec::new();
    for kind in [Kind::Vmm, Kind::Pool] {
        let shared = kind.share(&exporter, SIZE)?;
        let failed = must_fail(exporter.export_adopted(shared.memory, 0), kind.name())?;
        reasons.push(format!("{}: {failed}", kind.name()));
    }
    let shared = Kind::Legacy.share(&exporter, SIZE)?;
    let import = shared.import(&exporter, &reader, true)?;
    let failed = must_fail(reader.export_adopted(import, 0), "imported memory")?;
    reasons.push(format!("imported: {failed}"));
    Ok(reasons.join("; "))
}
