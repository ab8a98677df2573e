// SPDX-License-Identifier: MIT OR Apache-2.0

//! The parts of all scripts: the processes, and what the publisher does.

use crate::{
    stream::{
        Outcome,
        exporter::{Exporter, Frame, Settings},
        gpu::Written,
        process::{self, EXPORTER, FATE, FIRST_PID},
        reader::{self, Behaviour},
        record::Record,
        system::{Shortages, Simulated, Slot},
    },
    task::{block, kill, now, pause, preempt_at_each_step, spawn, step},
    time::Time,
    trace,
};
use frameshare_core::exporter::{
    limits::{Limits, SlowReaders},
    peer::Peer,
    slot::Purpose,
    state::State,
    unit::Unit,
    wait::Awaited,
};
use frameshare_protocol::{FenceKind, MemoryKind, Policy};
use std::{rc::Rc, time::Duration};

/// A slot of the first generation.
pub const PAGE: u64 = 4096;

/// The time in which everything happens that has to.
const PATIENCE: Duration = Duration::from_secs(20);

/// An exporter, and the record of what happens. Clones share both.
#[derive(Clone)]
pub struct Stage {
    pub exporter: Exporter,
    pub record: Rc<Record>,
}

/// The settings of an exporter with a backlog for lossless readers.
pub fn settings(kind: MemoryKind, max_slots: u32, keeps_frames: bool) -> Settings {
    let limits = Limits {
        max_slots,
        max_held: 4,
        reader_timeout: Duration::from_secs(1),
        slow_readers: SlowReaders::QueueThenWait,
        keeps_frames,
        history_pause: Duration::ZERO,
        max_queued_bytes: 1 << 20,
        max_queued_time: Duration::from_secs(2),
        fence_timeout: Duration::from_secs(1),
        max_retired_bytes: 1 << 20,
        max_gop_bytes: 1 << 20,
    };
    Settings {
        kind,
        fence: FenceKind::Timeline,
        limits,
        shortages: Shortages::default(),
        whole_descriptors: true,
        inspect: |_| (),
    }
}

/// A reader with a credit of one that takes and releases each frame at once.
pub fn reader(policy: Policy) -> Behaviour {
    let peer = Peer {
        pid: FIRST_PID,
        uid: 1000,
        is_own: true,
        is_own_or_root: true,
        is_in_this_process: false,
        is_trusted: true,
        may_have_gpu_memory: true,
        may_queue: true,
    };
    Behaviour {
        policy,
        credit: 1,
        max_queued: 1,
        peer,
        on_gpu: true,
        max_gop_bytes: 0,
        holds_us: 0,
        holds: 0,
        in_batches: false,
        gpu_us: 0,
        endless: 0,
        leaves_after: 0,
        lies: 0,
        fails_to_import: 0,
        pauses_ms: 0,
        on_socket: true,
        room: 16,
        gives_up: None,
        is_blameless: true,
    }
}

impl Stage {
    pub fn new(settings: &Settings, record: &Rc<Record>) -> Self {
        Self { exporter: Exporter::new(EXPORTER, settings, record), record: record.clone() }
    }

    /// Spawns the service thread, and the publisher with this code. The publisher closes the stream
    /// at its end.
    pub fn publish_with(&self, publish: impl FnOnce(&Self) + 'static) {
        let service = self.exporter.clone();
        spawn(EXPORTER, "service", move || service.serve());
        let stage = self.clone();
        spawn(EXPORTER, "publisher", move || {
            publish(&stage);
            stage.close();
        });
    }

    /// Spawns a reader.
    pub fn read(&self, process: u32, mut behaviour: Behaviour) {
        behaviour.peer.pid = process::pid_of(process);
        let Self { exporter, record } = self.clone();
        spawn(process, "reader", move || {
            reader::run(process, &exporter, &record, behaviour);
            record.end_process(process);
        });
    }

    /// Spawns a task that kills a reader from this time on: at any step, or when all tasks wait.
    pub fn kill(&self, process: u32, from: Time) {
        let record = self.record.clone();
        spawn(FATE, "fate", move || {
            block("lets it live", Some(from), || false);
            pause("may kill it");
            trace!("kills reader {process}");
            Outcome::Died.reach();
            record.killed.borrow_mut().insert(process);
            kill(process);
            record.end_process(process);
        });
    }

    /// Waits until so many readers have joined and sleep.
    pub fn join(&self, readers: u32) {
        assert!(self.exporter.wait_for_readers(readers as usize, PATIENCE), "no reader joins");
        pause("readers fall asleep");
    }

    /// Begins the part of the run that is enumerated.
    pub fn branch(&self) {
        preempt_at_each_step();
    }

    /// Returns a free slot. There is one at once: the stream's slots suffice for its readers.
    pub fn acquire(&self, size: u64) -> Slot {
        let slot = self.exporter.acquire(size, Purpose::Copy, Some(Duration::ZERO));
        slot.unwrap_or_else(|why| panic!("a publication finds no slot: {why:?}"))
    }

    /// Publishes a frame in a slot.
    pub fn publish_in(&self, slot: &Slot) {
        let tag = self.record.tag();
        slot.memory().begin_write(EXPORTER);
        step("write a frame");
        slot.memory().end_write(EXPORTER, tag);
        let (written, unit) = (Written::Cpu, Unit::Whole);
        let frame = Frame { slot, written, tag, unit, metadata: 0, is_late: false };
        let published = self.exporter.publish(&frame, None);
        published.unwrap_or_else(|why| panic!("a frame is not published: {why:?}"));
    }

    /// Publishes a frame in a free slot.
    pub fn publish(&self, size: u64) {
        let slot = self.acquire(size);
        self.publish_in(&slot);
    }

    /// Waits until a condition holds, which it has to while readers go on.
    pub fn expect(&self, what: &str, condition: impl Fn(&State<Simulated>) -> bool) {
        let until = Some(now() + PATIENCE);
        let met = self.exporter.wait_until(until, Awaited::Readers, |state| condition(state).then_some(()));
        assert!(met.is_some(), "never: {what}");
    }

    /// Waits until lossless readers have read all, closes the stream, and drops it after the
    /// service thread.
    fn close(&self) {
        assert!(self.exporter.drain(PATIENCE), "lossless readers have not read all");
        self.record.is_drained.set(true);
        self.exporter.close();
        let exporter = self.exporter.clone();
        block("wait for the service thread", None, || exporter.peek_over());
        self.exporter.with(|state| {
            state.reclaim();
        });
        self.exporter.drop_state();
    }
}
