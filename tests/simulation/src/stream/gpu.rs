// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPU work and fences. Work ends when a task of its own has done it, at any time or never.

use super::{memory::Memory, outcome::Outcome};
use crate::{
    Process,
    task::{block, chance, choose, is_dying, now, spawn, step},
};
use frameshare_core::exporter::{
    ending::Ending,
    system::{self, Signals as _},
};
use frameshare_protocol::{Descriptor, EntryIndex, FenceKind, Sequence, message::Reason};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// GPU work, or several pieces of it.
#[derive(Clone, Debug, Default)]
pub struct Work(Vec<Arc<AtomicBool>>);

impl Work {
    /// Work that [`Work::finish`] ends.
    pub fn begun() -> Self {
        Self(vec![Arc::default()])
    }

    /// Both pieces.
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.iter().chain(&other.0).cloned().collect())
    }

    /// Ends it.
    pub fn finish(&self) {
        if !is_dying() {
            self.0.iter().for_each(|piece| piece.store(true, Relaxed));
        }
    }

    /// Returns whether it is done, for conditions.
    pub fn peek(&self) -> bool {
        self.0.iter().all(|piece| piece.load(Relaxed))
    }
}

impl system::Work for Work {
    fn is_done(&self) -> bool {
        step("query an event");
        self.peek()
    }
}

/// Makes work take its time: up to so many microseconds.
pub fn take_time(what: &'static str, most_us: u32) {
    let until = now() + Duration::from_micros(u64::from(choose(most_us + 1)));
    block(what, Some(until), || false);
}

/// Begins work that writes a frame with this tag.
pub fn write(process: Process, memory: Memory, tag: u64, most_us: u32) -> Work {
    let work = Work::begun();
    let done = work.clone();
    spawn(process, "gpu writes", move || {
        memory.begin_write(process);
        take_time("gpu writes", most_us);
        memory.end_write(process, tag);
        done.finish();
    });
    work
}

/// The GPU that frames are written on. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Gpu {
    /// It fails in one of so many calls; never if 0.
    fails: u32,
    has_failed: Arc<AtomicBool>,
}

impl Gpu {
    /// A GPU that fails in one of so many calls, and in all calls after that; never if 0. Work that
    /// was begun before goes on.
    pub fn new(fails: u32) -> Self {
        Self { fails, has_failed: Arc::default() }
    }

    fn call(&self) -> Result<(), String> {
        if chance(self.fails) && !self.has_failed.swap(true, Relaxed) {
            Outcome::GpuFailed.reach();
        }
        if self.has_failed.load(Relaxed) { Err("a test".into()) } else { Ok(()) }
    }
}

impl system::Gpu for Gpu {
    type Error = String;
    type Current<'a> = ();

    fn enter(&self) -> Result<(), String> {
        self.call()
    }
}

/// The writer of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Written<'a> {
    /// The CPU.
    Cpu,
    /// This work.
    By(&'a Work),
}

/// The exporter's signal stream.
#[derive(Debug, Default)]
pub struct Signals {
    gpu: Gpu,
    present: Work,
    held: Work,
}

impl Signals {
    /// The signals of a stream on this GPU.
    pub fn new(gpu: Gpu) -> Self {
        Self { gpu, ..Self::default() }
    }
}

impl system::Signals for Signals {
    type Error = String;
    type Written<'a> = Written<'a>;
    type Writing = Work;
    type Present = Work;

    fn is_complete(written: Written<'_>) -> bool {
        matches!(written, Written::Cpu)
    }

    fn begin(&mut self, written: Written<'_>) -> Result<Option<Work>, String> {
        let Written::By(work) = written else {
            self.present = Work::default();
            return Ok(None);
        };
        self.gpu.call()?;
        self.present = work.clone();
        Ok(Some(work.clone()))
    }

    fn hold(&self) -> Result<(), String> {
        Ok(())
    }

    fn begin_earlier(&mut self) -> Result<(), String> {
        self.gpu.call()?;
        self.present = self.held.clone();
        Ok(())
    }

    fn flush(&mut self, writing: Option<&mut Work>) -> Result<(), String> {
        self.gpu.call()?;
        if let Some(writing) = writing {
            // A later signal for a frame that is held follows all work before.
            self.held = Work(self.held.and(writing).0.into_iter().filter(|one| !one.load(Relaxed)).collect());
        }
        Ok(())
    }

    fn is_writing(&self, writing: &Work) -> bool {
        !system::Work::is_done(writing)
    }

    fn present(&self) -> Option<Work> {
        Some(self.present.clone())
    }
}

/// The fences of one reader: for each entry the work that writes its frame, and the number of the
/// last frame whose reading is done.
#[derive(Clone, Debug)]
pub struct Fences {
    kind: FenceKind,
    entries: Arc<Vec<Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    ready: Mutex<Work>,
    released: AtomicU64,
}

impl Fences {
    /// Fences of this kind for so many entries.
    pub fn new(kind: FenceKind, entries: u32) -> Self {
        Self { kind, entries: Arc::new((0..entries).map(|_| Entry::default()).collect()) }
    }

    /// The work that the reader's work on the frame in this entry follows.
    pub fn ready(&self, entry: EntryIndex) -> Work {
        self.entries[entry.0].ready.lock().unwrap_or_else(|error| error.into_inner()).clone()
    }

    /// Signals that the reader's work on a frame is done.
    pub fn release(&self, entry: EntryIndex, sequence: Sequence) {
        step("signal the release fence");
        if !is_dying() {
            self.entries[entry.0].released.store(sequence.0, Relaxed);
        }
    }

    /// Writes any number, as a reader that lies.
    pub fn falsify(&self, entry: EntryIndex, value: u64) {
        self.entries[entry.0].released.store(value, Relaxed);
    }
}

impl system::Fence for Fences {
    type Signals = Signals;

    fn kind(&self) -> FenceKind {
        self.kind
    }

    fn signal_ready(&mut self, entry: EntryIndex, _: Sequence, signals: &mut Signals) -> Result<(), Ending> {
        step("signal the ready fence");
        let present = signals.present().unwrap_or_default();
        *self.entries[entry.0].ready.lock().unwrap_or_else(|error| error.into_inner()) = present;
        Ok(())
    }

    fn is_released(&mut self, entry: EntryIndex, sequence: Sequence) -> Result<bool, Ending> {
        step("poll the release fence");
        let found = self.entries[entry.0].released.load(Relaxed);
        if found > sequence.0 {
            let text = format!("the release word of entry {entry} reads {found}");
            return Err(Ending::new(Reason::Violation, text));
        }
        Ok(found == sequence.0)
    }
}

/// Makes downloads.
#[derive(Debug)]
pub struct Copier {
    /// The process of the exporter.
    pub process: Process,
    /// The exporter's GPU.
    pub gpu: Gpu,
    /// A download fails once in so many times; never if 0.
    pub fails: u32,
}

impl system::Copier for Copier {
    type Slot = super::system::Slot;
    type Written = Work;
    type Done = Work;
    type Error = String;

    fn start(
        &mut self,
        written: Work,
        from: &Self::Slot,
        to: &Self::Slot,
        frame: &Descriptor,
    ) -> Result<Work, String> {
        let done = Work::begun();
        let (end, process, tag) = (done.clone(), self.process, frame.media_offset.unwrap_or_default());
        let (from, to) = (from.memory().clone(), to.memory().clone());
        spawn(process, "gpu copies", move || {
            block("gpu waits for the frame", None, || written.peek());
            from.begin_read(process, tag);
            to.begin_write(process);
            take_time("gpu copies", 2000);
            to.end_write(process, tag);
            from.end_read(process, tag);
            end.finish();
        });
        Ok(done)
    }

    fn ended(&self, done: &Work) -> Result<Option<Result<(), String>>, String> {
        self.gpu.call()?;
        Ok(system::Work::is_done(done).then(|| {
            if chance(self.fails) {
                Outcome::DownloadFailed.reach();
                return Err("a test".into());
            }
            Ok(())
        }))
    }

    fn recycle(&mut self, _: Work) {}
}
