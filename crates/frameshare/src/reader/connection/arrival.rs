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
use frameshare_core::reader::{Announcement, End, KeptUnits, MAX_WAITING, Ordered};
use frameshare_cuda::device::Uuid;
use frameshare_protocol::message::ToReader;
use std::time::Duration;

impl Connection {
    /// Receives messages up to the limits.
    ///
    /// # Errors
    /// [`ReadError::Violation`], [`ReadError::TooMuchMetadata`], the error of an import, or of the
    /// system call.
    pub fn receive(&mut self) -> Result<(), ReadError> {
        // Due messages have been applied before.
        if self.order.is_full() {
            return Err(ProtocolViolation::EarlyMessages.into());
        }
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
        match message {
            ToReader::Gpu { gpu, fence, events } => {
                self.gpu.begin(Uuid(gpu), fence, &events, fd, self.exporter.gone())?;
            }
            ToReader::Generation { generation, memory, slot_size, adopted } => {
                let new = Announcement { generation, memory, slot_size, adopted };
                self.slots.add(new, fd.as_ref())?;
            }
            ToReader::Slot { slot, handle } => {
                self.slots.import(slot, &handle, fd.as_ref())?;
            }
            // Many generations are retired while a reader is paused: a retirement waits only for
            // untaken frames. Held frames keep their imports.
            ToReader::Retire { before, generation } => {
                if self.channel.consumer().has_published(before) {
                    self.order.push(before, Ordered::Retire(generation));
                } else {
                    self.slots.retire(generation);
                }
            }
            ToReader::RetireSlot { slot } => self.slots.retire_slot(slot)?,
            ToReader::Format { before, memory, format } => {
                self.order.push(before, Ordered::Format(memory, format));
            }
            ToReader::Event { before, kind, sticky, payload } => {
                let payload = control::read_payload(payload, fd, self.max_metadata_bytes)?;
                self.order.push(before, Ordered::Event { kind, sticky, payload });
            }
            ToReader::Metadata { sequence, payload } => {
                let payload = control::read_payload(payload, fd, self.max_metadata_bytes)?;
                self.order.push_metadata(sequence, payload);
            }
            ToReader::LargeAreas { count } => self.areas.add_large(fd.as_ref(), count)?,
            ToReader::KeptUnits { before, count, size } => {
                self.kept.count(size)?;
                let file = KeptFile::open(fd, size)?;
                let words = file.words();
                self.order.push(before, Ordered::Kept(KeptUnits::new(file, words, count, before)));
            }
            ToReader::Skipped { before } => self.order.push(before, Ordered::Skipped),
            ToReader::EndOfStream { before } => self.order.push(before, Ordered::EndOfStream),
            ToReader::Goodbye { reason, text } => self.ending.end(End::Closed(reason, text)),
            ToReader::Welcome(_) | ToReader::Refused { .. } => {
                return Err(ProtocolViolation::RepeatedAnswer.into());
            }
            ToReader::Snapshot { .. } | ToReader::Disconnected { .. } => {
                return Err(ProtocolViolation::UnexpectedMessage.into());
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
