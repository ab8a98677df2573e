// SPDX-License-Identifier: MIT OR Apache-2.0

//! Steady state: driver calls per frame; none of them allocates, imports or waits.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use frameshare::{FenceKind, MemoryKind};

use super::{Case, FENCES, FOREVER_US, KINDS, Needs, Setup, case, frames, to_the_end, whole};
use crate::job::{Command, Connect, End, Publish, Read, Slow, Steady, Use};
use crate::peer::Peer;

const SUITE: &str = "engine-steady";

pub const CASES: &[Case] = &[
    Case { suite: SUITE, name: "calls-per-frame", seconds: 180, needs: Needs::Nothing, conduct: calls },
    case(SUITE, "sleep-beside-a-pending-fence", sleep_beside_a_pending_fence),
];

/// Calls permitted per frame: they return at once and allocate or free nothing.
const ALLOWED: [&str; 16] = [
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxRecordEvent",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
    "cuStreamWaitValue64_v2",
    "cuStreamWriteValue64_v2",
    "cuStreamBatchMemOp_v2",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
    // Calls of the test's own writer and readers.
    "cuLaunchHostFunc",
    "cuMemsetD8Async",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuStreamQuery",
];

/// Every kind of memory and fence, with two readers. On a busy machine a frame may need a slot or
/// an event more than all before, so one run of three is enough.
fn calls(seed: u64) -> Result<String> {
    let mut lines = Vec::new();
    for kind in KINDS {
        for fence in FENCES {
            let mut bad = Vec::new();
            for _ in 0..3 {
                let (exporter, reader) = one(kind, fence, seed)?;
                bad = [("exporter", &exporter), ("reader", &reader)]
                    .map(|(who, steady)| not_allowed(who, steady))
                    .concat();
                if bad.is_empty() {
                    lines.push(format!(
                        "{kind} {fence}: exporter, two readers: {}; reader: {}",
                        per_frame(&exporter),
                        per_frame(&reader)
                    ));
                    break;
                }
            }
            ensure!(bad.is_empty(), "{kind} {fence}, in each of three runs; in the last: {bad:?}");
        }
    }
    Ok(lines.join(" | "))
}

/// Calls that are not permitted, with their number.
fn not_allowed(who: &str, steady: &Steady) -> Vec<String> {
    let bad = steady.calls.iter().filter(|(call, _)| !ALLOWED.contains(&call.as_str()));
    bad.map(|(call, count)| format!("{who}: {count} {call} in {} frames", steady.frames)).collect()
}

fn one(kind: MemoryKind, fence: FenceKind, seed: u64) -> Result<(Steady, Steady)> {
    let frames = (frames() / 10).max(150);
    let count_from = frames / 2;
    let setup = Setup::new(kind, seed)?;
    let readers = Peer::some(2)?;
    setup.join(&readers, |number| setup.lossless(number, Some(fence)))?;
    for reader in &readers {
        let read = Read { count_from, slow: Slow::Never, ..to_the_end() };
        reader.begin(&Command::Read(read))?;
    }
    let publish = Publish { frames, size: 256 << 10, count_from, ..Publish::default() };
    let published = setup.exporter.publish(publish)?;
    setup.exporter.execute(Command::EndOfStream)?;
    let mut steady = Steady::default();
    for reader in &readers {
        let read = reader.was_read()?;
        whole(&read, frames)?;
        steady = read.steady;
    }
    Ok((published.steady, steady))
}

fn per_frame(steady: &Steady) -> String {
    let of: BTreeMap<_, _> = steady.calls.iter().filter(|(call, _)| !call.starts_with("cuCtxP")).collect();
    let each = of.iter().map(|(call, count)| format!("{call} {:.2}", **count as f64 / steady.frames as f64));
    each.collect::<Vec<_>>().join(", ")
}

/// A reader that got a frame before its ready fence is signaled sleeps until the next publication,
/// without polling the fence. A reader that gets only written frames polls the fence instead.
fn sleep_beside_a_pending_fence(seed: u64) -> Result<String> {
    let looks = |written_only: bool| -> Result<u64> {
        let setup = Setup::new(MemoryKind::Vmm, seed)?;
        let reader = Peer::new()?;
        setup.join(std::slice::from_ref(&reader), |number| Connect {
            written_only,
            ..setup.lossless(number, Some(FenceKind::Event))
        })?;
        setup.exporter.execute(Command::Stall { us: FOREVER_US })?;
        setup.exporter.publish(Publish { frames: 1, size: 256 << 10, ..Publish::default() })?;
        let ahead = Read { what: Use::Touch, settle_ms: Some(0), patience_ms: 300, ..Read::default() };
        if !written_only {
            let one = reader.read(Read { frames: Some(1), ..ahead.clone() })?;
            ensure!(
                one.end == End::Enough,
                "no frame was delivered before its fence was signaled: {:?}",
                one.end
            );
        }
        let none = reader.read(ahead)?;
        ensure!(
            none.end == End::Nothing,
            "expected no frame, since the only one is unwritten, but got {:?}",
            none.end
        );
        setup.exporter.execute(Command::Resume)?;
        Ok(none.steady.calls.get("cuEventQuery").copied().unwrap_or(0))
    };
    let (asleep, awake) = (looks(false)?, looks(true)?);
    ensure!(
        asleep < awake / 4,
        "{asleep} polls of a fence that a stream waits for, {awake} of a reader that gets written frames"
    );
    Ok(format!("in 0.3 s {asleep} polls; {awake} of a reader that gets written frames"))
}
