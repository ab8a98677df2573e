// SPDX-License-Identifier: MIT OR Apache-2.0

//! The acts of the application of a simulated exporter: it publishes frames, changes the format,
//! and closes the stream.

use super::{
    exporter::{Exporter, Failed, Frame, OVERSIZED},
    gpu::{self, Work, Written, take_time},
    memory::Memory,
    outcome::Outcome,
    process,
    record::Record,
    system::Slot,
};
use crate::{
    Process,
    choices::Choices,
    task::{chance, choose, spawn, step, weighted},
    trace,
};
use frameshare_core::exporter::{slot::Purpose, system::Slot as _, unit::Unit};
use frameshare_protocol::{MemoryKind, message::Format};
use std::{cell::Cell, collections::VecDeque, rc::Rc, time::Duration};

/// Size in bytes of the frames of each format.
const SIZES: [u64; 3] = [4096, 8192, 20_000];

/// The acts of an application.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of acts of each thread.
    acts: u32,
    /// Number of threads that publish.
    threads: u32,
    /// Frames are units of an encoded stream; a key unit is one in so many.
    units: u32,
    /// Time between two frames, in microseconds.
    between_us: u32,
    /// Memory of other components is published in place.
    adopts: bool,
    /// The GPU takes up to so many microseconds for a frame.
    gpu_us: u32,
}

impl Plan {
    /// Chooses a plan.
    pub fn choose(choices: &mut Choices, kind: MemoryKind) -> Self {
        Self {
            acts: 5 + choices.choose(60),
            threads: 1 + u32::from(choices.chance(4)),
            // Encoded streams are in host memory.
            units: if choices.chance(3) && !kind.is_gpu() { 2 + choices.choose(6) } else { 0 },
            between_us: *choices.among(&[0, 100, 17_000]),
            adopts: choices.chance(4),
            gpu_us: *choices.among(&[0, 100, 5000]),
        }
    }
}

/// Spawns the threads of an application, the last of which closes the stream.
pub fn begin(process: Process, exporter: &Exporter, record: &Rc<Record>, plan: &Plan) {
    let running = Rc::new(Cell::new(plan.threads));
    for thread in 0..plan.threads {
        let application = Application {
            process,
            exporter: exporter.clone(),
            record: record.clone(),
            plan: plan.clone(),
            size: Cell::new(SIZES[0]),
            is_first_unit: Cell::new(true),
        };
        let running = running.clone();
        spawn(process, if thread == 0 { "publisher" } else { "second publisher" }, move || {
            application.run();
            running.set(running.get() - 1);
            if running.get() == 0 {
                application.close();
            }
        });
    }
}

struct Application {
    process: Process,
    exporter: Exporter,
    record: Rc<Record>,
    plan: Plan,
    size: Cell<u64>,
    is_first_unit: Cell<bool>,
}

impl Application {
    fn run(&self) {
        let exporter = &self.exporter;
        if chance(2) {
            exporter.wait_for_readers(1, Duration::from_millis(u64::from(choose(300))));
        }
        self.set_format(0);
        let mut held: VecDeque<Slot> = VecDeque::new();
        for _ in 0..self.plan.acts {
            take_time("between two frames", self.plan.between_us);
            match weighted(&[60, 12, 8, 3, 4, 2, 2, 2, 2, 1, 2, 3]) {
                0 => self.publish_copy(),
                1 => self.publish_from_pool(&mut held),
                2 if self.plan.adopts => self.publish_adopted(),
                3 => self.set_format(choose(SIZES.len() as u32) as usize),
                4 => self.send_event(),
                5 => exporter.with(|state| state.end_of_stream()),
                6 => {
                    exporter.with(|state| state.reclaim());
                    self.check_statistics();
                }
                7 => self.disconnect(),
                8 => self.revoke(),
                9 => exporter.with(|state| state.set_history(false)),
                10 => exporter.with(|state| state.retire_adopted()),
                11 => {
                    // Long enough for trimming, at times.
                    let us = *crate::task::among(&[20_000, 300_000, 8_000_000]);
                    take_time("pauses", us);
                }
                _ => self.publish_copy(),
            }
        }
    }

    /// Closes the stream, and waits until all that it holds is over.
    fn close(&self) {
        if chance(2) && self.exporter.drain(Duration::from_secs(3)) {
            Outcome::Drained.reach();
            self.record.is_drained.set(true);
        }
        trace!("closes the stream");
        self.exporter.close();
        let exporter = self.exporter.clone();
        crate::task::block("wait for the service thread", None, || exporter.peek_over());
        // The holdings of the state itself end with the exporter.
        self.exporter.with(|state| {
            state.reclaim();
            let kept = state.slots().generations().iter().map(|one| one.len()).sum::<u32>();
            trace!("ends with {kept} slots");
        });
        self.exporter.drop_state();
    }

    fn set_format(&self, index: usize) {
        self.size.set(SIZES[index]);
        self.is_first_unit.set(true);
        let media = if self.plan.units > 0 { "video/x-h264" } else { "video/x-raw" };
        let format = Format { caps: format!("{media}, width={}", SIZES[index]), video: None };
        self.exporter.with(|state| state.set_format(format));
    }

    fn send_event(&self) {
        let (sticky, long) = (chance(2), chance(3));
        self.exporter.with(|state| {
            let number = self.record.events.get() + 1;
            self.record.events.set(number);
            let payload = number.to_le_bytes().repeat(if long { 9000 } else { 1 });
            state.send_event(4, sticky, payload);
        });
    }

    /// A number of a reader, present or not.
    fn reader(&self) -> u64 {
        u64::from(1 + choose(8))
    }

    fn disconnect(&self) {
        let id = self.reader();
        self.exporter.with(|state| state.disconnect(id, "a test"));
    }

    fn revoke(&self) {
        let id = self.reader();
        // Readers have the processes behind the exporter's, in any order of admission.
        self.exporter.with(|state| {
            let pid = state.readers().all().find(|link| link.info.id == id).map(|link| link.info.pid);
            let Some(pid) = pid else { return };
            self.record.careless.add(process::of_reader(pid));
            if state.revoke(id, "a test") {
                Outcome::Revoked.reach();
            }
        });
    }

    /// Copies a frame into a slot and publishes it.
    fn publish_copy(&self) {
        let limit = (!chance(4)).then(|| Duration::from_millis(u64::from(choose(50))));
        let limit = limit.filter(|_| chance(2));
        match self.exporter.acquire(self.size.get(), Purpose::Copy, limit) {
            Ok(slot) => self.publish(&slot),
            Err(why) => trace!("no slot: {why:?}"),
        }
    }

    /// Publishes a slot that upstream has held for a while.
    fn publish_from_pool(&self, held: &mut VecDeque<Slot>) {
        let limit = Duration::from_millis(u64::from(choose(5)));
        if let Ok(slot) = self.exporter.acquire(self.size.get(), Purpose::Pool, Some(limit)) {
            Outcome::Pooled.reach();
            held.push_back(slot);
        }
        if held.len() > choose(3) as usize
            && let Some(slot) = held.pop_front()
            && slot.size() >= 4096
        {
            self.publish(&slot);
        }
    }

    /// Publishes memory of another component where it is.
    fn publish_adopted(&self) {
        let kind = if self.exporter.with(|state| state.kind()).is_gpu() {
            MemoryKind::Legacy
        } else {
            MemoryKind::DmaBuf
        };
        let memory = Memory::new(kind, SIZES[0], &self.record.careless);
        let adopted = self.exporter.adopt(&memory, self.record.tag());
        let Ok(slot) = adopted else { return };
        self.record.allocated.lock().unwrap_or_else(|error| error.into_inner()).push(memory.observe());
        drop(memory);
        if self.publish_in(&slot) == Some(Failed::InPlace) {
            Outcome::RefusedAdopted.reach();
        } else {
            Outcome::PublishedAdopted.reach();
        }
        if chance(3) {
            self.exporter.with(|state| state.retire_adopted());
            if self.publish_written(&slot, 0, None) == Some(Failed::Retired) {
                Outcome::RefusedRetired.reach();
            }
        }
    }

    fn publish(&self, slot: &Slot) {
        self.publish_in(slot);
    }

    /// Writes a frame into a slot and publishes it. Returns the reason if it is not published.
    fn publish_in(&self, slot: &Slot) -> Option<Failed> {
        let tag = self.record.tag();
        let work = match slot.is_in_host() {
            true => {
                slot.memory().begin_write(self.process);
                step("write a frame");
                slot.memory().end_write(self.process, tag);
                None
            }
            false => Some(gpu::write(self.process, slot.memory().clone(), tag, self.plan.gpu_us)),
        };
        self.publish_written(slot, tag, work)
    }

    /// Publishes a slot that was written, or is written by this work. Returns the reason if it is
    /// not published.
    fn publish_written(&self, slot: &Slot, tag: u64, work: Option<Work>) -> Option<Failed> {
        let written = work.as_ref().map_or(Written::Cpu, Written::By);
        let unit = match self.plan.units {
            0 => Unit::Whole,
            _ if self.is_first_unit.replace(false) && !chance(5) => Unit::Key,
            length if chance(length) => Unit::Key,
            _ => Unit::Delta,
        };
        if unit == Unit::Delta {
            self.record.deltas.borrow_mut().insert(tag);
        }
        let metadata = if chance(15) { OVERSIZED } else { choose(20) as usize };
        let frame = Frame { slot, written, tag, unit, metadata, is_late: chance(30) };
        let limit = chance(4).then(|| Duration::from_millis(u64::from(choose(20))));
        match self.exporter.publish(&frame, limit) {
            Ok(_) => None,
            Err(why) => {
                trace!("not published: {why:?}");
                Some(why)
            }
        }
    }

    /// No reader has more frames than its credit. Notes what the stream is doing.
    fn check_statistics(&self) {
        self.exporter.with(|state| {
            let stats = state.stats();
            for reader in &stats.readers {
                let (held, credit) = (reader.held + reader.queued, reader.info.credit);
                assert!(held <= credit, "a reader has {held} frames with a credit of {credit}");
            }
            if stats.trimmed_slots > 0 {
                Outcome::Trimmed.reach();
            }
            if stats.waiting_bytes > 0 {
                Outcome::Backlog.reach();
            }
            if !stats.draining.is_empty() {
                Outcome::Draining.reach();
            }
            if state.gpu_is_busy() {
                Outcome::GpuBusy.reach();
            }
            if !state.publications().unwritten().is_empty() {
                Outcome::Unwritten.reach();
            }
            if state.is_downloading() {
                Outcome::Downloaded.reach();
            }
        });
    }
}
