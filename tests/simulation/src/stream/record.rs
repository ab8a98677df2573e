// SPDX-License-Identifier: MIT OR Apache-2.0

//! The events of a run, for its rules: frames that were published, readers, and memory.

use super::{
    channel::Channel,
    memory::{Careless, Observed},
    outcome::Outcome,
};
use crate::{
    Process,
    task::{is_dying, now},
    time::Time,
};
use frameshare_core::exporter::notice::Notice;
use frameshare_protocol::Sequence;
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

/// A sleep that ends by itself is late if what it waited for was there for so long.
pub const LATE: Duration = Duration::from_millis(2);

/// The record of a run.
#[derive(Debug, Default)]
pub struct Record {
    /// The tag of each published frame.
    pub published: RefCell<BTreeMap<Sequence, u64>>,
    /// Tags of frames that cannot be decoded without the one before them.
    pub deltas: RefCell<BTreeSet<u64>>,
    /// The notices to the owner, with their times.
    pub notices: RefCell<Vec<(Time, Notice)>>,
    /// The number of the event that some reader took last.
    pub last_event: Cell<u64>,
    /// Number of events that were sent.
    pub events: Cell<u64>,
    /// Number of events that were sent before a reader joined, by its process.
    pub events_before: RefCell<BTreeMap<Process, u64>>,
    /// The connections, by the process of their reader.
    pub channels: RefCell<BTreeMap<Process, Channel>>,
    /// All memory that was allocated.
    pub allocated: Arc<Mutex<Vec<Observed>>>,
    /// Processes that may read what is written meanwhile.
    pub careless: Careless,
    /// User data of publications that is not dropped yet.
    pub kept_alive: Arc<Mutex<usize>>,
    /// Readers that hold frames.
    pub holding: RefCell<BTreeSet<Process>>,
    /// Readers that were killed.
    pub killed: RefCell<BTreeSet<Process>>,
    /// The clock is regular: it neither stands nor jumps.
    pub is_regular: Cell<bool>,
    /// Time of the last thing that a reader did, and that a thread of the exporter may wait for.
    pub last_act: Cell<Time>,
    /// Times at which a reader may have made room for its frames that wait, by its process: of the
    /// first release since one of them left, and of the last other act.
    room: RefCell<BTreeMap<Process, [Option<Time>; 2]>>,
    /// The first of the frames that wait for a reader, by its process.
    backlogs: RefCell<BTreeMap<Process, Option<Sequence>>>,
    /// The exporter was killed, and the work of its GPU is given up.
    pub has_exporter_died: Cell<bool>,
    /// The stream was closed after lossless readers had read all of it.
    pub is_drained: Cell<bool>,
    next_tag: Cell<u64>,
}

impl Record {
    /// A number that no other frame has.
    pub fn tag(&self) -> u64 {
        self.next_tag.set(self.next_tag.get() + 1);
        self.next_tag.get()
    }

    /// Notes that something happened that another side may wait for.
    pub fn note_act(&self) {
        self.last_act.set(now());
    }

    /// Notes that a reader has ended a lease.
    pub fn note_release(&self, process: Process) {
        self.room.borrow_mut().entry(process).or_default()[0].get_or_insert(now());
        self.note_act();
    }

    /// Notes that a reader did something after which there may be room for its frames that wait, if
    /// nothing else is missing.
    pub fn note_room(&self, process: Process) {
        self.room.borrow_mut().entry(process).or_default()[1] = Some(now());
        self.note_act();
    }

    /// Notes the first of the frames that wait for a lossless reader. Checks that the one before it
    /// did not wait for long although there was room.
    pub fn note_backlog(&self, process: Process, first: Option<Sequence>) {
        let before = self.backlogs.borrow_mut().insert(process, first).flatten();
        let room = if first == before { None } else { self.room.borrow_mut().remove(&process) };
        let since = room.and_then(|times| times.into_iter().flatten().max());
        if let (Some(_), Some(since)) = (before, since) {
            self.check_late(&format!("a frame for reader {process} waited"), since);
        }
    }

    /// Checks that a sleep that ended by itself has missed nothing: what it waited for was not
    /// there for long.
    pub fn check_wake_up(&self, who: &str, since: Time) {
        self.check_late(&format!("{who} slept on"), since);
        if !is_dying() && self.is_regular.get() {
            Outcome::LateWakeUp.reach();
        }
    }

    fn check_late(&self, what: &str, since: Time) {
        // An exporter may die before it wakes anyone.
        let is_checked = self.is_regular.get() && !self.has_exporter_died.get() && !is_dying();
        let is_late = is_checked && now() - since >= LATE;
        assert!(!is_late, "missed wake-up: {what}, although it could have gone on since {since}");
    }

    /// Ends a process of a reader, as the kernel does.
    pub fn end_process(&self, process: Process) {
        self.killed.borrow_mut().insert(process);
        let allocated = self.allocated.lock().unwrap_or_else(|error| error.into_inner());
        allocated.iter().for_each(|memory| memory.forget(process));
        drop(allocated);
        if let Some(channel) = self.channels.borrow().get(&process) {
            channel.exit_reader();
        }
        self.note_act();
    }
}

/// User data of a publication.
#[derive(Debug)]
pub struct KeptAlive(Arc<Mutex<usize>>);

impl KeptAlive {
    /// User data that the record counts.
    pub fn new(record: &Record) -> Self {
        *record.kept_alive.lock().unwrap_or_else(|error| error.into_inner()) += 1;
        Self(record.kept_alive.clone())
    }
}

impl Drop for KeptAlive {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(|error| error.into_inner()) -= 1;
    }
}
