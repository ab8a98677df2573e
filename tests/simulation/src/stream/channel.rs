// SPDX-License-Identifier: MIT OR Apache-2.0

//! The connection of an exporter and a reader, as the kernel has it: a socket for messages, a pair
//! of wake-up sockets, and the sign of the reader's end.
//!
//! Each method is a system call, and a preemption point. `peek` methods are for conditions of
//! blocked tasks.

use super::{
    files::{Bytes, HostFile},
    memory::Memory,
    words::SharedPage,
};
use crate::{
    task::{is_dying, now, step},
    time::Time,
};
use frameshare_protocol::{
    Sequence,
    message::{ToExporter, ToReader},
};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

/// Something that a descriptor refers to.
#[derive(Clone, Debug)]
pub enum File {
    /// The memory of a slot.
    Slot(Memory),
    /// The object that importers need for all slots of a generation.
    Pool,
    /// A payload, as the exporter holds it.
    Payload(Arc<HostFile>),
    /// A payload, as a reader receives it.
    Bytes(Bytes),
    /// The pages, the fence and the wake-up word of a reader.
    Welcome(Box<Shares>),
}

/// The shared objects that a reader gets with its `Welcome`.
#[derive(Clone, Debug)]
pub struct Shares {
    /// Descriptors and the head.
    pub queue: SharedPage,
    /// Claims and flags.
    pub claims: SharedPage,
    /// The word that readers of this user sleep on.
    pub word: Option<WakeWord>,
    /// The fences, if it reads frames on a GPU.
    pub fences: super::gpu::Fences,
}

/// A word that readers sleep on.
#[derive(Clone, Debug, Default)]
pub struct WakeWord(Arc<AtomicU32>);

impl WakeWord {
    /// The value.
    pub fn value(&self) -> u32 {
        step("load wake word");
        self.peek()
    }

    /// The value, for conditions.
    pub fn peek(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Wakes all readers that sleep on it.
    pub fn wake(&self) {
        step("wake futex");
        if !is_dying() {
            self.0.fetch_add(1, Relaxed);
        }
    }
}

/// The connection. Clones share it.
#[derive(Clone, Debug)]
pub struct Channel(Arc<Mutex<Ends>>);

#[derive(Debug)]
struct Ends {
    to_reader: VecDeque<(Vec<u8>, Vec<File>)>,
    to_exporter: VecDeque<ToExporter>,
    /// Time of the last message to the reader.
    sent: Time,
    /// The first frame after the reader joined.
    live: Sequence,
    /// The greatest place of those messages among the frames.
    place: Sequence,
    /// Number of messages to the reader that the socket takes.
    room: usize,
    exporter_closed: bool,
    reader_closed: bool,
    reader_exited: bool,
    wake_for_reader: bool,
    wake_for_exporter: bool,
}

/// The outcome of an attempt to receive.
#[derive(Debug)]
pub enum Received<T> {
    /// Nothing has arrived.
    Nothing,
    /// The other side has closed its end, and nothing is left.
    HungUp,
    /// Something has arrived.
    Message(T),
}

impl Ends {
    fn note_place(&mut self, message: &[u8]) {
        if let Ok(
            ToReader::Format { before, .. }
            | ToReader::Event { before, .. }
            | ToReader::EndOfStream { before },
        ) = ToReader::decode(message)
        {
            self.place = self.place.max(before);
        }
    }
}

impl Channel {
    /// A connection whose socket takes so many messages for the reader.
    pub fn new(room: usize) -> Self {
        Self(Arc::new(Mutex::new(Ends {
            to_reader: VecDeque::new(),
            to_exporter: VecDeque::new(),
            sent: Time::ZERO,
            live: Sequence(0),
            place: Sequence(0),
            room,
            exporter_closed: false,
            reader_closed: false,
            reader_exited: false,
            wake_for_reader: false,
            wake_for_exporter: false,
        })))
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(|error| error.into_inner())
    }

    // The exporter's side.

    /// Sends a message to the reader. Returns false if the socket is full; an error if the reader
    /// has hung up.
    pub fn send_to_reader(&self, message: &[u8], files: &[File]) -> Result<bool, ()> {
        step("send to reader");
        let mut ends = self.ends();
        if ends.reader_closed {
            return Err(());
        }
        let has_room = ends.to_reader.len() < ends.room;
        if has_room && !is_dying() {
            // A descriptor in flight is no holder in the exporter.
            let files = files.iter().map(|file| match file {
                File::Payload(file) => File::Bytes(file.bytes().clone()),
                other => other.clone(),
            });
            ends.to_reader.push_back((message.to_vec(), files.collect()));
            ends.sent = now();
            ends.note_place(message);
        }
        Ok(has_room)
    }

    /// Notes the first frame after the reader joined.
    pub fn note_live(&self, live: Sequence) {
        self.ends().live = live;
    }

    /// Time of the last message to the reader.
    pub fn sent(&self) -> Time {
        self.ends().sent
    }

    /// Returns whether a message for the application overtook this frame. Those from before the
    /// reader joined may be overtaken.
    pub fn has_overtaken(&self, frame: Sequence) -> bool {
        let ends = self.ends();
        (ends.live..ends.place).contains(&frame)
    }

    /// Number of descriptors that the reader has not received.
    pub fn files_in_flight(&self) -> usize {
        self.ends().to_reader.iter().map(|(_, files)| files.len()).sum()
    }

    /// Returns whether the reader has received everything.
    pub fn is_received(&self) -> bool {
        step("ask for unreceived bytes");
        self.ends().to_reader.is_empty()
    }

    /// Returns whether a message to the reader has room.
    pub fn peek_room(&self) -> bool {
        let ends = self.ends();
        ends.to_reader.len() < ends.room || ends.reader_closed
    }

    /// Receives a message of the reader.
    pub fn receive_from_reader(&self) -> Received<ToExporter> {
        step("receive from reader");
        let mut ends = self.ends();
        match ends.to_exporter.pop_front() {
            Some(message) => Received::Message(message),
            None if ends.reader_closed => Received::HungUp,
            None => Received::Nothing,
        }
    }

    /// Returns whether the exporter would receive something.
    pub fn peek_from_reader(&self) -> bool {
        let ends = self.ends();
        !ends.to_exporter.is_empty() || ends.reader_closed
    }

    /// Wakes the reader.
    pub fn wake_reader(&self) {
        step("wake reader");
        if !is_dying() {
            self.ends().wake_for_reader = true;
        }
    }

    /// Takes a wake-up of the reader. Returns false if the reader has closed its end.
    pub fn drain_for_exporter(&self) -> bool {
        step("drain wake-ups of reader");
        let mut ends = self.ends();
        ends.wake_for_exporter = false;
        !ends.reader_closed
    }

    /// Returns whether a wake-up of the reader, or the end of it, is to be taken.
    pub fn peek_wake_for_exporter(&self) -> bool {
        let ends = self.ends();
        ends.wake_for_exporter || ends.reader_closed
    }

    /// Returns whether the reader's process has ended.
    pub fn peek_exit(&self) -> bool {
        self.ends().reader_exited
    }

    /// Closes the exporter's end.
    pub fn close_exporter(&self) {
        if !is_dying() {
            self.ends().exporter_closed = true;
        }
    }

    // The reader's side.

    /// Sends a message to the exporter.
    pub fn send_to_exporter(&self, message: ToExporter) {
        step("send to exporter");
        if !is_dying() {
            self.ends().to_exporter.push_back(message);
        }
    }

    /// Receives a message of the exporter.
    pub fn receive_from_exporter(&self) -> Received<(Vec<u8>, Vec<File>)> {
        step("receive from exporter");
        let mut ends = self.ends();
        match ends.to_reader.pop_front() {
            Some(message) => Received::Message(message),
            None if ends.exporter_closed => Received::HungUp,
            None => Received::Nothing,
        }
    }

    /// Returns whether the reader would receive something.
    pub fn peek_from_exporter(&self) -> bool {
        let ends = self.ends();
        !ends.to_reader.is_empty() || ends.exporter_closed
    }

    /// Wakes the exporter.
    pub fn wake_exporter(&self) {
        step("wake exporter");
        if !is_dying() {
            self.ends().wake_for_exporter = true;
        }
    }

    /// Takes a wake-up of the exporter. Returns false if the exporter has closed its end.
    pub fn drain_for_reader(&self) -> bool {
        step("drain wake-ups of exporter");
        let mut ends = self.ends();
        ends.wake_for_reader = false;
        !ends.exporter_closed
    }

    /// Returns whether a wake-up of the exporter, or the end of it, is to be taken.
    pub fn peek_wake_for_reader(&self) -> bool {
        let ends = self.ends();
        ends.wake_for_reader || ends.exporter_closed
    }

    /// Closes the reader's end.
    pub fn close_reader(&self) {
        if !is_dying() {
            let mut ends = self.ends();
            ends.reader_closed = true;
            ends.to_reader.clear();
        }
    }

    /// The kernel ends the reader's process.
    pub fn exit_reader(&self) {
        let mut ends = self.ends();
        ends.reader_closed = true;
        ends.reader_exited = true;
        ends.to_reader.clear();
    }

    /// The kernel ends the exporter's process.
    pub fn exit_exporter(&self) {
        self.ends().exporter_closed = true;
    }
}

/// Wakes one thread of the exporter. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Sets it.
    pub fn set(&self) {
        if !is_dying() {
            self.0.store(true, Relaxed);
        }
    }

    /// Clears it.
    pub fn unset(&self) {
        if !is_dying() {
            self.0.store(false, Relaxed);
        }
    }

    /// Returns whether it is set.
    pub fn peek(&self) -> bool {
        self.0.load(Relaxed)
    }
}

impl frameshare_core::exporter::system::Waiter for Interrupt {
    fn wake(&self) {
        step("interrupt a thread");
        self.set();
    }

    fn clear(&self) {
        step("clear the interrupt");
        self.unset();
    }
}
