// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arrival of messages: they are received, checked, and handled at once or queued in their place
//! among the frames.

use super::{
    Connection,
    control::{self, Received},
    kept::KeptFile,
};
use crate::{
    Interrupt,
    memory::frees_imports_first,
    reader::error::{ProtocolViolation, ReadError},
    sys::{Timeout, UntrustedFd},
};
use frameshare_core::reader::{Arrival, AtOnce, End, KeptUnits, MAX_WAITING, Ordered, Unread};
use frameshare_cuda::device::Uuid;
use frameshare_protocol::{Sequence, message::ToReader};
use std::time::Duration;

impl Connection {
    /// Receives messages up to the limits.
    ///
    /// # Errors
    /// [`ReadError::Violation`], [`ReadError::TooMuchMetadata`], the error of an import, or of the
    /// system call.
    pub fn receive(&mut self) -> Result<(), ReadError> {
        self.order.check_room()?;
        if self.sleep.state().is_violated() {
            return Err(ProtocolViolation::DescriptorOverWake.into());
        }
        // Checked before the last messages are received.
        let is_gone = self.sleep.state().is_closed() || self.exporter.has_exited();
        // Bounds one call, against an exporter that never stops sending.
        for _ in 0..MAX_WAITING {
            if !self.ending.is_connected() || self.order.is_full() {
                break;
            }
            match control::receive(self.channel.socket())? {
                Received::Nothing if is_gone => self.ending.end(End::HungUp),
                Received::Nothing => break,
                Received::HungUp => self.ending.end(End::HungUp),
                Received::Message(message, fd) => match self.handle(message, fd) {
                    // Handles of some kinds are invalid without the exporter.
                    Err(ReadError::Memory(error))
                        if frees_imports_first(error.kind)
                            && self.exporter.is_exiting(self.channel.socket()) =>
                    {
                        self.ending.end(End::HungUp);
                    }
                    handled => handled?,
                },
            }
        }
        Ok(())
    }

    /// Handles a message on its arrival: at once, or in its place among the frames.
    fn handle(&mut self, message: ToReader, fd: Option<UntrustedFd>) -> Result<(), ReadError> {
        self.order.count_packet(message.is_ordered());
        let arrival = Arrival::of(message, |before| self.channel.consumer().has_published(before));
        match arrival? {
            Arrival::AtOnce(message) => self.handle_at_once(message, fd),
            Arrival::Ordered(before, message) => {
                self.order.push(before, message);
                Ok(())
            }
            Arrival::Unread(before, message) => self.read(before, message, fd),
        }
    }

    fn handle_at_once(&mut self, message: AtOnce, fd: Option<UntrustedFd>) -> Result<(), ReadError> {
        match message {
            AtOnce::UseGpu { gpu, fence, events } => {
                self.gpu.begin(Uuid(gpu), fence, &events, fd, self.exporter.gone())?;
            }
            AtOnce::Add(generation) => self.slots.add(generation, fd.as_ref())?,
            AtOnce::Import { slot, handle } => self.slots.import(slot, &handle, fd.as_ref())?,
            AtOnce::Retire(generation) => self.slots.retire(generation),
            AtOnce::RetireSlot(slot) => self.slots.retire_slot(slot)?,
            AtOnce::AddLargeAreas(count) => self.areas.add_large(fd.as_ref(), count)?,
            AtOnce::End(end) => self.ending.end(end),
        }
        Ok(())
    }

    /// Reads the content of a message, and queues it in front of frame `before`.
    fn read(&mut self, before: Sequence, message: Unread, fd: Option<UntrustedFd>) -> Result<(), ReadError> {
        let limit = self.max_metadata_bytes;
        match message {
            Unread::Event { kind, sticky, payload } => {
                let payload = control::read_payload(payload, fd, limit)?;
                self.order.push(before, Ordered::Event { kind, sticky, payload });
            }
            Unread::Metadata(payload) => {
                self.order.push_metadata(before, control::read_payload(payload, fd, limit)?);
            }
            Unread::KeptUnits { count, size } => {
                self.kept.count(size)?;
                let file = KeptFile::open(fd, size)?;
                let words = file.words();
                self.order.push(before, Ordered::Kept(KeptUnits::new(file, words, count, before)));
            }
        }
        Ok(())
    }

    /// Receives messages if some have arrived, or the exporter has ended: one system call if not.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_arrived(&mut self) -> Result<(), ReadError> {
        let now = Timeout::after(Some(Duration::ZERO));
        let has_messages = self.sleep.wait(None, self.exporter.gone(), now);
        if has_messages.map_err(ReadError::Io)? { self.receive() } else { Ok(()) }
    }

    /// Sleeps until a wake-up or a message, and receives messages.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn sleep(&mut self, interrupt: &Interrupt, timeout: Timeout) -> Result<(), ReadError> {
        if self.sleep.has_unreceived(self.order.packets()) {
            return self.receive_announced();
        }
        let has_messages = self.sleep.wait(Some(interrupt), self.exporter.gone(), timeout);
        if has_messages.map_err(ReadError::Io)? { self.receive() } else { self.receive_counted() }
    }

    /// Receives messages that the exporter has counted: no system call if there are none.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub fn receive_counted(&mut self) -> Result<(), ReadError> {
        if self.sleep.has_unreceived(self.order.packets()) { self.receive_announced() } else { Ok(()) }
    }

    /// Receives messages that the exporter says it has sent.
    fn receive_announced(&mut self) -> Result<(), ReadError> {
        let before = self.order.packets();
        self.receive()?;
        self.sleep.received_announced(self.order.packets() > before);
        Ok(())
    }
}
