// SPDX-License-Identifier: MIT OR Apache-2.0

//! Behavior of the driver that frameshare relies on, or has to avoid. Each case states what was
//! measured on an H200 with driver 580; a driver that differs fails it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare_gpu_harness::order::{self, Expected};
use frameshare_gpu_harness::{Failed, Start};

use super::{Case, Kind, Needs, PATIENCE_MS, case, require};
use crate::command::{Command, Id, Source};
use crate::peer::Peer;
use crate::raw;
use crate::words::Words;

const SUITE: &str = "driver";

pub const CASES: &[Case] = &[
    long("waiting-streams-hold-back-others", waiting_streams_hold_back_others),
    long("ring-of-waiting-streams-never-ends", ring_of_waiting_streams),
    long("calls-beside-a-waiting-stream", calls_beside_a_waiting_stream),
    long("context-record-covers-all-work", context_record_covers_all_work),
    case(SUITE, "memory-of-another-context", memory_of_another_context),
    case(SUITE, "default-stream-of-each-thread", default_stream_of_each_thread),
    case(SUITE, "handles-of-destroyed-streams", handles_of_destroyed_streams),
];

const fn long(name: &'static str, conduct: fn(u64) -> Result<String>) -> Case {
    Case { suite: SUITE, name, seconds: 60, needs: Needs::Nothing, conduct }
}

const SIZE: usize = 1 << 20;
/// Longer than work takes that nothing holds back.
const HELD_BACK: Duration = Duration::from_secs(2);
/// Longer than a stream takes to begin with its work.
const UNDER_WAY: Duration = Duration::from_millis(200);
/// Timeline values of a case, and the first ones for streams that work and for those that wait.
const WORDS: usize = 512;
const WORKED: usize = 64;
const ARRIVED: usize = 128;

/// A peer with timeline values that the case reads and stores.
struct Timeline {
    peer: Peer,
    words: Words,
    page: Id,
}

impl Timeline {
    fn new(environment: (&str, &str)) -> Result<Timeline> {
        // The streams of these cases write one memory at once, whose content does not matter.
        order::expect(Expected::Any);
        let peer = Peer::start(Start { environment: &[environment], ..Start::default() })?;
        peer.open(0, true)?;
        require(&peer, "timeline")?;
        let memory = Words::create(WORDS)?;
        let page = peer.page(&memory, WORDS, true)?;
        Ok(Timeline { peer, words: Words::map(&memory, WORDS, true)?, page })
    }

    fn store(&self, word: usize, value: u64) {
        self.words.as_ref()[word].store(value, Ordering::Release);
    }

    /// Waits until at most `rest` of the values from `first` on are not written; returns how many
    /// are not, after a time limit.
    fn unwritten(&self, first: usize, count: usize, rest: usize, limit: Duration) -> usize {
        let begin = Instant::now();
        loop {
            let words = &self.words.as_ref()[first..first + count];
            let unwritten = words.iter().filter(|word| word.load(Ordering::Acquire) == 0).count();
            if unwritten <= rest || begin.elapsed() > limit {
                return unwritten;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes streams wait for values; returns when as many as there are channels do so.
    fn occupy(&self, waits: &[(Id, usize)], channels: usize) -> Result<()> {
        for (number, (stream, word)) in waits.iter().enumerate() {
            self.peer.write_word(self.page, ARRIVED + number, 1, *stream)?;
            self.peer.wait_word(self.page, *word, 1, *stream)?;
        }
        let rest = waits.len().saturating_sub(channels);
        let unwritten = self.unwritten(ARRIVED, waits.len(), rest, Duration::from_millis(PATIENCE_MS));
        ensure!(unwritten <= rest, "{unwritten} of {} streams do no work", waits.len());
        std::thread::sleep(UNDER_WAY);
        Ok(())
    }
}

/// Number of hardware channels for streams, and the variable for it. The default is simulated for
/// the adversary only.
const CHANNELS: [(usize, (&str, &str)); 2] = [(8, ADVERSARY), (32, ("CUDA_DEVICE_MAX_CONNECTIONS", "32"))];
/// The simulated driver uses handles again, and has hardware channels.
const ADVERSARY: (&str, &str) = ("SIMCUDA_ADVERSARY", "1");

/// A stream that waits for a value occupies a hardware channel. As many as there are hold back all
/// other streams of the process; one holds back few.
fn waiting_streams_hold_back_others(_: u64) -> Result<String> {
    const OTHERS: usize = 31;
    let mut seen = Vec::new();
    for (channels, variable) in CHANNELS {
        for waiting in [1, channels] {
            let held = held_back(variable, channels, waiting, OTHERS)?;
            let text =
                format!("{waiting} waiting streams of {channels} channels hold back {held} of {OTHERS}");
            let as_measured = if waiting == channels { held == OTHERS } else { held <= OTHERS / 4 };
            ensure!(as_measured, "{text}");
            seen.push(text);
        }
    }
    Ok(seen.join("; "))
}

/// Returns how many of `others` do no work beside `waiting` streams.
fn held_back(variable: (&str, &str), channels: usize, waiting: usize, others: usize) -> Result<usize> {
    let timeline = Timeline::new(variable)?;
    let Timeline { peer, page, .. } = &timeline;
    let memory = peer.allocate(Source::Vmm, SIZE)?;
    let (mut waits, mut works) = (Vec::new(), Vec::new());
    // In turns, as a process creates those of its connections and its own.
    for number in 0..waiting.max(others) {
        if number < waiting {
            waits.push((peer.stream()?, 0));
        }
        if number < others {
            works.push(peer.stream()?);
        }
    }
    timeline.occupy(&waits, channels)?;
    for (number, stream) in works.iter().enumerate() {
        peer.fill(memory, 0, SIZE, 1, *stream)?;
        peer.write_word(*page, WORKED + number, 1, *stream)?;
    }
    let held = timeline.unwritten(WORKED, others, 0, HELD_BACK);
    timeline.store(0, 1);
    for stream in waits.iter().map(|(stream, _)| stream).chain(&works) {
        peer.finish(*stream)?;
    }
    Ok(held)
}

/// Streams that wait for values that streams behind them write: they never end by themselves.
fn ring_of_waiting_streams(_: u64) -> Result<String> {
    const PAIRS: usize = 64;
    let mut seen = Vec::new();
    for (channels, variable) in CHANNELS {
        let timeline = Timeline::new(variable)?;
        let Timeline { peer, page, .. } = &timeline;
        let memory = peer.allocate(Source::Vmm, SIZE)?;
        let (mut waits, mut writes) = (Vec::new(), Vec::new());
        for word in 0..PAIRS {
            waits.push((peer.stream()?, word));
            writes.push(peer.stream()?);
        }
        timeline.occupy(&waits, channels)?;
        for (word, stream) in writes.iter().enumerate() {
            peer.fill(memory, 0, SIZE, 1, *stream)?;
            peer.write_word(*page, word, 1, *stream)?;
        }
        std::thread::sleep(HELD_BACK);
        let mut stuck = 0;
        for (stream, _) in &waits {
            stuck += usize::from(!peer.idle_within(*stream, 0)?);
        }
        ensure!(stuck > 0, "none of {PAIRS} waiting streams is stuck, with {channels} channels");
        (0..PAIRS).for_each(|word| timeline.store(word, 1));
        for stream in waits.iter().map(|(stream, _)| stream).chain(&writes) {
            peer.finish(*stream)?;
        }
        seen.push(format!("{stuck} of {PAIRS} stuck with {channels} channels"));
    }
    Ok(seen.join("; "))
}

/// Calls that wait until no stream of the context waits for a value, and calls that do not.
fn calls_beside_a_waiting_stream(_: u64) -> Result<String> {
    let timeline = Timeline::new(ADVERSARY)?;
    let Timeline { peer, page, .. } = &timeline;
    let (waiting, other) = (peer.stream()?, peer.stream()?);
    let memory = peer.allocate(Source::Vmm, SIZE)?;
    let has_kernels = unless_missing(peer.execute(Command::Launch { memory, stream: other }))?;
    let destroyed = (peer.stream()?, peer.event(false)?, peer.allocate(Source::Vmm, SIZE)?);
    let (event, second) = (peer.event(false)?, Words::create(WORDS)?);
    let waits = |turn| -> Result<()> {
        peer.wait_word(*page, 0, turn, waiting)?;
        peer.fill(memory, 0, SIZE, 1, waiting)
    };

    waits(1)?;
    if has_kernels {
        peer.execute(Command::Launch { memory, stream: other })?;
    }
    peer.stream()?;
    peer.event(false)?;
    peer.execute(Command::DropStream(destroyed.0))?;
    peer.execute(Command::DropEvent(destroyed.1))?;
    peer.execute(Command::RecordContext { event, stream: other })?;
    let small = peer.allocate(Source::Legacy, 4096)?;
    let large = peer.allocate(Source::Legacy, 1 << 30)?;
    peer.allocate(Source::Vmm, SIZE)?;
    peer.drop_memory(destroyed.2)?;
    let host = peer.number(Command::AllocateHost(SIZE))?;
    let registered = peer.page(&second, WORDS, true)?;
    let capture = peer.capture(memory, 0, SIZE, other)?;
    peer.finish(other)?;
    ensure!(!peer.idle_within(waiting, 0)?, "the stream has not waited");
    timeline.store(0, 1);
    peer.finish(waiting)?;
    // Its memory is unregistered, which waits.
    peer.differs_from_fill(capture, 0)?;

    let calls = [
        ("cuMemFree of a small allocation", Command::DropMemory(small)),
        ("cuMemFree of a large allocation", Command::DropMemory(large)),
        ("cuMemFreeHost", Command::FreeHost(host)),
        ("cuMemHostUnregister", Command::DropPage(registered)),
    ];
    for ((name, call), turn) in calls.into_iter().zip(2..) {
        waits(turn)?;
        peer.begin(&call)?;
        std::thread::sleep(UNDER_WAY);
        ensure!(!peer.has_reported()?, "{name} does not wait for a waiting stream of the context");
        timeline.store(0, turn);
        peer.end().context(name)?;
        peer.finish(waiting)?;
    }

    // While such a call waits, so do some calls of other threads.
    let shared = false;
    let beside = [
        ("cuEventCreate", Command::Event { shared }, true),
        ("cuStreamCreate", Command::Stream, true),
        ("cuEventRecord", Command::Record { event, stream: other }, true),
        ("cuMemAlloc", Command::Allocate { source: Source::Legacy, size: 4096, stream: 0 }, true),
        ("cuMemHostAlloc", Command::AllocateHost(SIZE), true),
        ("cuCtxRecordEvent", Command::RecordContext { event, stream: other }, true),
        ("a memset", Command::Fill { memory, offset: 0, size: 4096, value: 1, stream: other }, true),
        ("cuEventQuery", Command::QueryEvent(event), false),
        ("cuStreamWaitEvent", Command::Wait { stream: other, event }, false),
        ("cuStreamWriteValue64", Command::WriteWord { page: *page, word: 1, value: 1, stream: other }, false),
    ];
    for ((name, call, is_held_up), turn) in beside.into_iter().zip(10..) {
        let freed = peer.allocate(Source::Legacy, 4096)?;
        waits(turn)?;
        peer.execute(Command::DropMemoryAside(freed))?;
        std::thread::sleep(UNDER_WAY);
        peer.begin(&call)?;
        std::thread::sleep(UNDER_WAY);
        let has_waited = !peer.has_reported()?;
        timeline.store(0, turn);
        peer.end().context(name)?;
        ensure!(has_waited == is_held_up, "beside cuMemFree, {name} has waited: {has_waited}");
        peer.finish(waiting)?;
    }
    Ok(if has_kernels { String::new() } else { "without kernels".to_owned() })
}

/// Returns whether the command succeeded; an error if it failed although the driver has what it
/// needs. The simulated driver has no kernels, graphs and green contexts.
fn unless_missing<T>(result: Result<T>) -> Result<bool> {
    match result.map_err(|error| error.downcast::<Failed>()) {
        Ok(_) => Ok(true),
        Err(Ok(failed))
            if failed.text.ends_with(": 801") || failed.text.contains("not found in the driver") =>
        {
            Ok(false)
        }
        Err(Ok(failed)) => Err(failed.into()),
        Err(Err(error)) => Err(error),
    }
}

/// The record of a context covers everything that was queued in it before, on streams of every
/// kind, that are destroyed or belong to threads that have ended.
fn context_record_covers_all_work(_: u64) -> Result<String> {
    /// The work may be complete before the record.
    const ATTEMPTS: usize = 5;
    order::expect(Expected::Any);
    let peer = Peer::new()?;
    let memory = peer.allocate(Source::Vmm, SIZE)?;
    let (event, other) = (peer.event(false)?, peer.event(false)?);
    // A kind of stream that is busy, and a stream that is idle.
    let is_covered = |name: &str, idle: Id| -> Result<()> {
        peer.execute(Command::RecordContext { event, stream: idle })?;
        ensure!(!peer.event_ready(event)?, "the record does not cover {name}");
        // The event is pending because of the other stream's work alone.
        peer.record(other, idle)?;
        peer.finish(idle)?;
        ensure!(peer.event_ready(other)?, "an idle stream is busy beside {name}");
        peer.resume()?;
        let begin = Instant::now();
        while !peer.event_ready(event)? {
            ensure!(
                begin.elapsed().as_millis() < PATIENCE_MS.into(),
                "the record stays pending after {name}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let held = |stream: Id| -> Result<()> {
        peer.hold(stream)?;
        peer.fill(memory, 0, SIZE, 1, stream)
    };
    let mut missing = Vec::new();

    let own = peer.stream()?;
    held(own)?;
    is_covered("a stream without implicit synchronization", 0)?;
    for (name, kind) in [
        ("a stream with priority", raw::Kind::Priority),
        ("the legacy default stream", raw::Kind::Legacy),
        ("the default stream of a thread", raw::Kind::PerThread),
        ("a stream of a green context", raw::Kind::Green),
    ] {
        let made = peer.other_stream(kind);
        if let Ok(stream) = made {
            held(stream)?;
            is_covered(name, 0)?;
        } else if !unless_missing(made)? {
            missing.push(name);
        }
    }
    peer.ready(Command::HoldOnThread)?;
    is_covered("the default stream of a thread that has ended", 0)?;

    let destroyed = peer.stream()?;
    held(destroyed)?;
    peer.execute(Command::DropStream(destroyed))?;
    is_covered("a destroyed stream whose work waits", 0)?;

    let mut is_pending = false;
    for _ in 0..ATTEMPTS {
        let destroyed = peer.stream()?;
        peer.execute(Command::Load { stream: destroyed, us: 300_000 })?;
        peer.execute(Command::DropStream(destroyed))?;
        peer.execute(Command::RecordContext { event, stream: 0 })?;
        is_pending |= !peer.event_ready(event)?;
    }
    ensure!(is_pending, "the record does not cover a destroyed stream whose work is under way");

    let (first, second, between) = (peer.stream()?, peer.stream()?, peer.event(false)?);
    held(first)?;
    peer.record(between, first)?;
    peer.wait(second, between)?;
    peer.fill(memory, 0, SIZE, 1, second)?;
    for stream in [first, second] {
        peer.execute(Command::DropStream(stream))?;
    }
    peer.execute(Command::DropEvent(between))?;
    is_covered("a destroyed stream that waits for another destroyed one", 0)?;

    let launched = peer.stream()?;
    if unless_missing(peer.execute(Command::HoldInGraph(launched)))? {
        is_covered("the launch of a graph", 0)?;
    } else {
        missing.push("the launch of a graph");
    }
    let calls = peer.text(Command::Calls)?;
    ensure!(calls.contains("cuCtxRecordEvent"), "the driver has no record of a context: {calls}");
    Ok(if missing.is_empty() { String::new() } else { format!("not here: {}", missing.join(", ")) })
}

/// Copies, fills and kernels of one context read and write memory of another one of the same
/// device.
fn memory_of_another_context(seed: u64) -> Result<String> {
    let mut has_kernels = true;
    for kind in Kind::ALL {
        let peer = Peer::new()?;
        let shared = kind.share(&peer, SIZE)?;
        peer.write(shared.memory, SIZE, seed)?;
        peer.open(0, false)?;
        let foreign = peer.stream()?;
        let own = peer.allocate(Source::Vmm, SIZE)?;
        let rows = |to, from| Command::CopyRows {
            to,
            to_pitch: 4096,
            from,
            from_pitch: 4096,
            width: 4096,
            height: SIZE / 4096,
            stream: foreign,
        };
        let read = peer.capture(shared.memory, 0, SIZE, foreign)?;
        peer.execute(rows(own, shared.memory))?;
        peer.finish(foreign)?;
        ensure!(
            peer.differs_from_pattern(read, seed)? == 0,
            "{}: another context read it wrong",
            kind.name()
        );
        peer.check(own, 0, SIZE, seed).with_context(|| kind.name())?;

        peer.fill(own, 0, SIZE, 0x11, foreign)?;
        peer.execute(rows(shared.memory, own))?;
        peer.fill(shared.memory, 0, 4096, 0x11, foreign)?;
        peer.finish(foreign)?;
        let written = peer.capture(shared.memory, 0, SIZE, 0)?;
        peer.finish(0)?;
        let wrong = peer.differs_from_fill(written, 0x11)?;
        ensure!(wrong == 0, "{}: another context wrote {wrong} of {SIZE} bytes wrong", kind.name());

        let launch = Command::Launch { memory: shared.memory, stream: foreign };
        has_kernels = unless_missing(peer.execute(launch))?;
        if has_kernels {
            peer.finish(foreign)?;
            let stored = peer.capture(shared.memory, 0, 4, 0)?;
            peer.finish(0)?;
            ensure!(peer.differs_from_fill(stored, 0x11)? == 4, "{}: a kernel wrote nothing", kind.name());
        }
    }
    Ok(if has_kernels { String::new() } else { "without kernels".to_owned() })
}

/// The handle of the per-thread default stream means another stream on each thread, which does not
/// wait for those of other threads.
fn default_stream_of_each_thread(_: u64) -> Result<String> {
    let peer = Peer::new()?;
    let own = peer.other_stream(raw::Kind::PerThread)?;
    peer.hold(own)?;
    for _ in 0..2 {
        ensure!(peer.ready(Command::HoldOnThread)?, "two threads have one default stream");
    }
    ensure!(!peer.idle_within(own, 0)?, "the handle does not name the calling thread's stream");
    peer.resume()?;
    peer.finish(own)?;
    Ok(String::new())
}

/// The handle of a stream names another stream that is created after its end, and is never valid
/// without one: the driver returns an error or crashes.
fn handles_of_destroyed_streams(_: u64) -> Result<String> {
    const ROUNDS: usize = 20;
    let peer = Peer::start(Start { environment: &[ADVERSARY], ..Start::default() })?;
    peer.open(0, true)?;
    let mut reused = 0;
    for _ in 0..ROUNDS {
        let stream = peer.stream()?;
        let handle = peer.number(Command::Handle(stream))?;
        peer.execute(Command::DropStream(stream))?;
        let later: Vec<_> = (0..8).map(|_| peer.stream()).collect::<Result<_>>()?;
        for stream in later {
            reused += usize::from(peer.number(Command::Handle(stream))? == handle);
        }
    }
    ensure!(reused > 0, "no handle of {ROUNDS} was used again by the next 8 streams");

    let stream = peer.stream()?;
    let handle = peer.number(Command::Handle(stream))?;
    peer.number(Command::IsCapturing(handle)).context("the handle of a living stream")?;
    peer.execute(Command::DropStream(stream))?;
    let stale = peer.number(Command::IsCapturing(handle));
    ensure!(stale.is_err(), "the handle of a destroyed stream is valid");
    Ok(format!("{reused} of {ROUNDS} handles were used again; {:#}", stale.unwrap_err()))
}
