// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fences: behavior of CUDA beyond the rules in [`crate::conformance`], and calls per frame.

use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::{Case, Kind, Needs, PATIENCE_MS, case, require};
use crate::command::{Command, Id, Source};
use crate::peer::{Peer, must_fail};
use crate::words::Words;

const SUITE: &str = "fences";

pub const CASES: &[Case] = &[
    case(SUITE, "event-states", event_states),
    case(SUITE, "event-captures-the-record-before-the-wait", event_captures_the_record_before_the_wait),
    case(SUITE, "event-own-handle", event_own_handle),
    case(SUITE, "timeline-states", timeline_states),
    case(SUITE, "timeline-batch", timeline_batch),
    case(SUITE, "timeline-read-only-page", timeline_read_only_page),
    case(SUITE, "timeline-unregister-waits", timeline_unregister_waits),
    case(SUITE, "context-record", |_| context_record(false)),
    case(SUITE, "context-record-on-an-imported-event", |_| context_record(true)),
    case(SUITE, "calls-of-a-frame", calls_of_a_frame),
    long("work-beside-waiting-streams", work_beside_waiting_streams),
];

const fn long(name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite: SUITE, name, seconds: 60, needs: Needs::Nothing, conduct }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fence {
    Event,
    Timeline,
}

/// The timeline value of the ready fence.
const READY: usize = 0;

/// One side of a ready fence.
struct Side<'a> {
    peer: &'a Peer,
    event: Id,
    page: Id,
    fence: Fence,
}

impl Side<'_> {
    fn signal(&self, round: u64) -> Result<()> {
        match self.fence {
            Fence::Event => self.peer.record(self.event, 0),
            Fence::Timeline => self.peer.write_word(self.page, READY, round, 0),
        }
    }

    fn wait(&self, round: u64) -> Result<()> {
        match self.fence {
            Fence::Event => self.peer.wait(0, self.event),
            Fence::Timeline => self.peer.wait_word(self.page, READY, round, 0),
        }
    }
}

fn sides<'a>(exporter: &'a Peer, reader: &'a Peer, fence: Fence) -> Result<[Side<'a>; 2]> {
    Ok(match fence {
        Fence::Event => {
            require(exporter, "event")?;
            let event = exporter.event(true)?;
            let opened = reader.open_event(exporter, event)?;
            [
                Side { peer: exporter, event, page: 0, fence },
                Side { peer: reader, event: opened, page: 0, fence },
            ]
        }
        Fence::Timeline => {
            require(exporter, "timeline")?;
            let memory = Words::create(512)?;
            let (ours, theirs) = (exporter.page(&memory, 512, true)?, reader.page(&memory, 512, true)?);
            [
                Side { peer: exporter, event: 0, page: ours, fence },
                Side { peer: reader, event: 0, page: theirs, fence },
            ]
        }
    })
}

const FRAME: usize = 128 << 10;

/// An event that was never recorded is complete; one with work before it is pending, then complete,
/// in both processes, and streams of either wait for the other's record.
fn event_states(_: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "event")?;
    let event = exporter.event(true)?;
    let opened = reader.open_event(&exporter, event)?;
    ensure!(
        exporter.event_ready(event)? && reader.event_ready(opened)?,
        "an event without a record is pending"
    );
    reader.wait(0, opened)?;
    ensure!(reader.idle_within(0, PATIENCE_MS)?, "a stream waits for an event without a record");
    for (recorder, other, here, there) in
        [(&exporter, &reader, event, opened), (&reader, &exporter, opened, event)]
    {
        recorder.hold(0)?;
        recorder.record(here, 0)?;
        ensure!(!recorder.event_ready(here)?, "the recorder's pending event is reported complete");
        ensure!(!other.event_ready(there)?, "a pending event is reported complete in the other process");
        other.wait(0, there)?;
        ensure!(!other.idle_within(0, 50)?, "a stream passed a pending event of the other process");
        recorder.resume()?;
        recorder.finish(0)?;
        other.finish(0)?;
        ensure!(recorder.event_ready(here)? && other.event_ready(there)?, "an event stays pending");
    }
    Ok(String::new())
}

/// A wait covers the latest record made before it; a later record does not delay it.
fn event_captures_the_record_before_the_wait(_: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "event")?;
    let event = exporter.event(true)?;
    let opened = reader.open_event(&exporter, event)?;
    exporter.record(event, 0)?;
    exporter.finish(0)?;
    reader.wait(0, opened)?;
    exporter.hold(0)?;
    exporter.record(event, 0)?;
    ensure!(reader.idle_within(0, PATIENCE_MS)?, "a wait was delayed by a later record");
    reader.wait(0, opened)?;
    ensure!(!reader.idle_within(0, 50)?, "a wait passed a pending record");
    exporter.resume()?;
    reader.finish(0)?;
    Ok(String::new())
}

/// A process cannot open its own event.
fn event_own_handle(_: u64) -> Result<String> {
    let exporter = Peer::new()?;
    require(&exporter, "event")?;
    let event = exporter.event(true)?;
    let failed = must_fail(exporter.open_event(&exporter, event), "opening the process's own event")?;
    Ok(failed.to_string())
}

/// A wait completes when the timeline value is at least the requested one; a store of the CPU
/// releases a waiting stream as a write of the GPU does.
fn timeline_states(_: u64) -> Result<String> {
    let reader = Peer::new()?;
    require(&reader, "timeline")?;
    let memory = Words::create(512)?;
    let words = Words::map(&memory, 512, true)?;
    let word = &words.as_ref()[0];
    let page = reader.page(&memory, 512, true)?;
    let other = reader.stream()?;

    word.store(u64::MAX - 1, Ordering::Release);
    reader.wait_word(page, 0, u64::MAX - 1, 0)?;
    ensure!(reader.idle_within(0, PATIENCE_MS)?, "a stream waits for a value that is already reached");
    reader.wait_word(page, 0, u64::MAX, 0)?;
    ensure!(!reader.idle_within(0, 50)?, "a stream passed a timeline value below the requested one");
    // Comparison is cyclic: values wrap around at 2^64.
    word.store(1, Ordering::Release);
    ensure!(reader.idle_within(0, PATIENCE_MS)?, "a stream does not see a value stored by the CPU");

    reader.hold(0)?;
    reader.write_word(page, 0, 5, 0)?;
    reader.wait_word(page, 0, 5, other)?;
    ensure!(
        !reader.idle_within(other, 20)?,
        "a timeline value was written before its stream reached the write"
    );
    ensure!(
        word.load(Ordering::Acquire) == 1,
        "the CPU sees a timeline value before its stream reached the write"
    );
    reader.resume()?;
    reader.finish(other)?;
    ensure!(word.load(Ordering::Acquire) == 5, "the CPU does not see a value written by a stream");
    Ok(String::new())
}

/// More values than one call accepts are all written, after the preceding work.
fn timeline_batch(_: u64) -> Result<String> {
    const COUNT: usize = 600;
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "timeline")?;
    let memory = Words::create(1024)?;
    let words = Words::map(&memory, 1024, true)?;
    let (ours, theirs) = (exporter.page(&memory, 1024, true)?, reader.page(&memory, 1024, true)?);
    exporter.text(Command::Calls)?;
    reader.wait_word(theirs, COUNT - 1, 7, 0)?;
    exporter.hold(0)?;
    let values = (0..COUNT).map(|word| (word, 7 + word as u64)).collect();
    exporter.execute(Command::WriteWords { page: ours, values, stream: 0 })?;
    ensure!(
        words.as_ref()[0].load(Ordering::Acquire) == 0,
        "timeline values were written before their stream reached the writes"
    );
    exporter.resume()?;
    reader.finish(0)?;
    exporter.finish(0)?;
    for (index, word) in words.as_ref()[..COUNT].iter().enumerate() {
        let value = word.load(Ordering::Acquire);
        ensure!(value == 7 + index as u64, "timeline value {index} is {value}");
    }
    ensure!(
        words.as_ref()[COUNT].load(Ordering::Acquire) == 0,
        "a timeline value beyond the batch was written"
    );
    let calls = exporter.text(Command::Calls)?;
    ensure!(calls.contains("cuStreamBatchMemOp_v2 3"), "expected 3 calls for 600 values, got: {calls}");
    Ok(String::new())
}

/// A reader that maps the page read-only can wait for values and cannot write them.
fn timeline_read_only_page(_: u64) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "timeline")?;
    let memory = Words::create(512)?;
    let (ours, theirs) = (exporter.page(&memory, 512, true)?, reader.page(&memory, 512, false)?);
    reader.wait_word(theirs, 3, 9, 0)?;
    ensure!(!reader.idle_within(0, 50)?, "a stream passed a timeline value below the requested one");
    exporter.write_word(ours, 3, 9, 0)?;
    reader.finish(0)?;
    let failed = must_fail(reader.write_word(theirs, 3, 10, 0), "a write to a page registered for reading")?;
    Ok(failed.to_string())
}

/// Unregistering a page waits for a write that is queued behind other work.
fn timeline_unregister_waits(_: u64) -> Result<String> {
    let exporter = Peer::new()?;
    require(&exporter, "timeline")?;
    let memory = Words::create(512)?;
    let words = Words::map(&memory, 512, true)?;
    let page = exporter.page(&memory, 512, true)?;
    exporter.sleep(0, 1_500_000)?;
    exporter.write_word(page, 0, 1, 0)?;
    let us = exporter.drop_page(page)?;
    let value = words.as_ref()[0].load(Ordering::Acquire);
    ensure!(value == 1, "after unregistering the timeline value is {value}");
    ensure!(us > 200_000, "unregistering took {us} µs with 1.5 s of work before the write");
    exporter.finish(0)?;
    Ok(format!("{us} µs"))
}

/// The context-wide record covers every stream of the context, including streams without implicit
/// synchronization, so such a release cannot come too early.
fn context_record(imported: bool) -> Result<String> {
    let (exporter, reader) = (Peer::new()?, Peer::new()?);
    require(&exporter, "event")?;
    let event = exporter.event(true)?;
    let opened = reader.open_event(&exporter, event)?;
    let (event, other) = if imported { (opened, opened) } else { (reader.event(false)?, opened) };
    let streams = [reader.stream()?, reader.stream()?, reader.stream()?];
    reader.text(Command::Calls)?;
    for busy in streams {
        // Host functions of different streams may share one thread, so only one stream at a time is
        // busy.
        reader.sleep(busy, 150_000)?;
        reader.execute(Command::RecordContext { event, stream: 0 })?;
        ensure!(
            !reader.event_ready(event)? || reader.idle_within(busy, 0)?,
            "the record does not cover a busy stream"
        );
        reader.wait(0, event)?;
        reader.finish(0)?;
        ensure!(reader.idle_within(busy, 0)?, "a wait for the record passed a busy stream");
        ensure!(reader.event_ready(event)?, "the record stays pending");
    }
    reader.execute(Command::DropEvent(other))?;
    let calls = reader.text(Command::Calls)?;
    let how = if calls.contains("cuCtxSynchronize") { "by waiting" } else { "by cuCtxRecordEvent" };
    Ok(how.to_owned())
}

/// Calls per frame on each side: a fill, a signal and a wait, with the pushes and pops of the
/// context and the changes of the capture mode around each.
fn calls_of_a_frame(_: u64) -> Result<String> {
    let mut report = String::new();
    for (name, fence, signal, wait) in [
        ("event", Fence::Event, "cuEventRecord 10", "cuStreamWaitEvent 10"),
        ("timeline", Fence::Timeline, "cuStreamWriteValue64_v2 10", "cuStreamWaitValue64_v2 10"),
    ] {
        let (exporter, reader) = (Peer::new()?, Peer::new()?);
        let shared = Kind::Vmm.share(&exporter, FRAME)?;
        let [ours, theirs] = sides(&exporter, &reader, fence)?;
        exporter.text(Command::Calls)?;
        reader.text(Command::Calls)?;
        for round in 1..=10 {
            exporter.fill(shared.memory, 0, FRAME, 1, 0)?;
            ours.signal(round)?;
            theirs.wait(round)?;
        }
        let (writes, reads) = (exporter.text(Command::Calls)?, reader.text(Command::Calls)?);
        let expected = [
            ("cuCtxPopCurrent_v2 20", &writes),
            ("cuCtxPushCurrent_v2 20", &writes),
            ("cuThreadExchangeStreamCaptureMode 40", &writes),
            ("cuMemsetD8Async 10", &writes),
            (signal, &writes),
            ("cuCtxPopCurrent_v2 10", &reads),
            (wait, &reads),
        ];
        for (call, calls) in expected {
            ensure!(calls.split(", ").any(|counted| counted == call), "{call} is not among {calls}");
        }
        ensure!(writes.split(", ").count() == 5, "unexpected calls: {writes}");
        ensure!(reads.split(", ").count() == 4, "unexpected calls: {reads}");
        report += &format!("{name}: {writes} | {reads}; ");
    }
    Ok(report)
}

/// GPUs schedule processes in time slices. Measures the cost for one working process when streams
/// of other processes wait, compared with idle processes; there is no guarantee. No process may be
/// blocked for good.
fn work_beside_waiting_streams(_: u64) -> Result<String> {
    const OTHERS: usize = 8;
    const FRAMES: u32 = 100;
    const SIZE: usize = 3 << 20;
    let mut report = Vec::new();
    for (name, fence) in [("event", Fence::Event), ("timeline", Fence::Timeline)] {
        let (worker, signals) = (Peer::new()?, Peer::new()?);
        let others = (0..OTHERS).map(|_| Peer::new()).collect::<Result<Vec<_>>>()?;
        let memory = worker.allocate(Source::Vmm, SIZE)?;
        let work = || -> Result<u128> {
            let begin = Instant::now();
            for _ in 0..FRAMES {
                worker.fill(memory, 0, SIZE, 1, 0)?;
                worker.finish(0)?;
            }
            Ok((begin.elapsed() / FRAMES).as_micros())
        };
        let mut waiting = Vec::new();
        for other in &others {
            let memory = other.allocate(Source::Vmm, SIZE)?;
            other.fill(memory, 0, SIZE, 1, 0)?;
            other.finish(0)?;
            waiting.push((sides(&signals, other, fence)?, memory));
        }
        let idle = work()?;
        signals.hold(0)?;
        for ([ours, theirs], memory) in &waiting {
            ours.signal(1)?;
            theirs.wait(1)?;
            theirs.peer.fill(*memory, 0, SIZE, 2, 0)?;
        }
        let beside = work()?;
        for other in &others {
            ensure!(!other.idle_within(0, 0)?, "{name}: a stream passed a pending fence");
        }
        signals.resume()?;
        for other in &others {
            other.finish(0)?;
        }
        report.push(format!(
            "{name}: {beside} µs a frame beside {OTHERS} processes with waiting streams, {idle} beside idle ones"
        ));
    }
    Ok(report.join("; "))
}
