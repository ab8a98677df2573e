// SPDX-License-Identifier: MIT OR Apache-2.0

//! Delivery: the way of a frame out of the queue to the application, and of the messages between
//! frames.

use super::{Connection, kept::KeptFile, unwritten::Written};
use crate::{
    event::Event,
    reader::{
        error::{ProtocolViolation, ReadError},
        item::Item,
        lease::{Frame, Imported, Lease},
        origin::Origin,
    },
    sys::monotonic_ns,
};
use frameshare_core::reader::{End, Ordered, Step, Violation};
use frameshare_protocol::{Descriptor, Sequence};
use std::sync::Arc;

/// Maximum number of consecutive frames that the exporter revokes at the moment of their claim.
const MAX_REVOKED: u32 = 1000;

impl Connection {
    /// Returns the next item in order, if it has arrived. An error comes after all items before it.
    ///
    /// # Errors
    /// The end of the connection, or a violation of the protocol.
    pub fn next(&mut self) -> Result<Option<Item>, ReadError> {
        if let Some(error) = self.channel.failure() {
            return Err(ReadError::Fence(error.clone()));
        }
        if self.ending.is_reported() {
            return self.end();
        }
        if let Some(unwritten) = self.unwritten.take() {
            let written = unwritten.poll().map_err(ReadError::Io)?;
            return self.when_written(written);
        }
        let mut revoked = 0;
        loop {
            if self.kept.is_due()
                && let Some(unit) = self.next_kept()?
            {
                return Ok(Some(Item::Frame(unit)));
            }
            // The head is loaded before the claims: a message up to here then comes after all
            // frames that precede it.
            let head = self.channel.consumer().head();
            let oldest = self.channel.consumer().oldest();
            let oldest = oldest.as_ref().map(Result::as_ref).transpose();
            let oldest = oldest.map_err(|error| Violation::Descriptor(*error))?;
            let oldest = oldest.map(|taken| (taken.entry, &taken.descriptor));
            let step = self.order.next(head, oldest, self.progress.expected());
            let (entry, descriptor) = match step? {
                Step::Apply(before, message) => match self.apply(before, message) {
                    Some(item) => return Ok(Some(item)),
                    None => continue,
                },
                Step::Receive(frame) if self.receive_before(frame)? => continue,
                Step::Receive(_) | Step::Wait => break,
                Step::Take(entry, descriptor) => (entry, descriptor),
            };
            let sequence = descriptor.sequence;
            let place = self.slots.place(descriptor.slot);
            // Memory that was not imported before the exporter's end cannot be imported.
            let is_in_reach = self.ending.is_connected() || place.is_imported();
            let may_be_taken = place.is_unreadable()
                || is_in_reach
                    && (!place.is_fenced() || self.gpu.may_deliver(entry, sequence, &mut self.ending)?);
            if !may_be_taken {
                return self.end();
            }
            if !self.channel.consumer().claim(entry, sequence) {
                revoked += 1;
                if revoked > MAX_REVOKED {
                    return Err(ProtocolViolation::Revocations { count: revoked }.into());
                }
                continue;
            }
            // From here on the frame is released in every case.
            let lease = Lease::new(self.channel.clone(), entry, sequence, place.is_fenced());
            if place.is_unreadable() {
                // It is released at once, and counted as lost: the next frames are elsewhere.
                drop(lease);
                continue;
            }
            let lost_before = self.progress.deliver(sequence);
            let import = place.import(descriptor)?.clone();
            let is_in_dma_buf = place.is_in_dma_buf();
            let frame = self.frame(descriptor, lost_before, import, lease)?;
            if is_in_dma_buf {
                return self.when_written(Written::of(frame).map_err(ReadError::Io)?);
            }
            return Ok(Some(Item::Frame(frame)));
        }
        self.gpu.check_deadline(None, &mut self.ending)?;
        self.end()
    }

    /// Makes a frame of a publication that is taken.
    fn frame(
        &mut self,
        descriptor: &Descriptor,
        lost_before: u64,
        import: Arc<Imported>,
        lease: Lease,
    ) -> Result<Frame, ReadError> {
        let sequence = descriptor.sequence;
        let in_area = self.areas.load(descriptor)?;
        let metadata = self.order.take_metadata(sequence).unwrap_or(in_area);
        let is_kept = sequence < self.live;
        if !is_kept {
            // Both times are of CLOCK_MONOTONIC; the exporter's is any number.
            self.channel.consumer().count_age(monotonic_ns().saturating_sub(descriptor.published));
        }
        let origin = self.origin.clone();
        Ok(Frame::new(descriptor.clone(), lost_before, is_kept, metadata, import, lease, origin))
    }

    /// Returns a taken frame when no device writes it any more: the kernel signals the fences also
    /// after the exporter's end. A device that takes too long ends the connection.
    fn when_written(&mut self, written: Written) -> Result<Option<Item>, ReadError> {
        let unwritten = match written {
            Written::Yes(frame) => return Ok(Some(Item::Frame(frame))),
            Written::No(unwritten) => unwritten,
        };
        let (sequence, limit) = (unwritten.sequence(), self.gpu.fence_timeout());
        if unwritten.waited() > limit {
            self.ending.end(End::Stalled { sequence, limit });
            return self.end();
        }
        self.unwritten = Some(unwritten);
        Ok(None)
    }

    /// Returns the next of the kept units that are due.
    fn next_kept(&mut self) -> Result<Option<Frame>, ReadError> {
        let record = self.kept.next_record()?;
        let Some((file, at)) = record else { return Ok(None) };
        let (file, unit) = (file.clone(), file.unit(at)?);
        let is_last = self.kept.pass(unit.descriptor.sequence, unit.next)?;
        let frame = file.frame(at, unit, self.channel.session(), is_last, self.origin.clone())?;
        self.progress.deliver_kept();
        Ok(Some(frame))
    }

    /// Receives messages that precede a frame. Returns false if there are none yet.
    fn receive_before(&mut self, frame: &Descriptor) -> Result<bool, ReadError> {
        let before = self.order.messages();
        self.receive()?;
        self.order.has_advanced(before, frame).map_err(ReadError::from)
    }

    /// Applies a message in its place, which is in front of frame `before`. Returns the item for
    /// the application, if it yields one.
    fn apply(&mut self, before: Sequence, message: Ordered<KeptFile>) -> Option<Item> {
        match message {
            Ordered::Format(memory, format) => {
                let format = Arc::new(format);
                self.memory = memory;
                self.origin = Arc::new(Origin::of(&format, self.origin.is_own_user));
                return Some(Item::Format(format));
            }
            Ordered::Event { kind, sticky, payload } => {
                return Some(Item::Event(Event { kind, sticky, payload }));
            }
            Ordered::EndOfStream => {
                self.progress.end(before);
                return Some(Item::EndOfStream);
            }
            Ordered::Retire(generation) => self.slots.retire(generation),
            Ordered::Kept(units) => self.kept.begin(units),
            Ordered::Skipped => self.progress.skip(before),
        }
        None
    }

    /// Returns the end of the connection, if it has ended and nothing else is left to deliver.
    fn end(&mut self) -> Result<Option<Item>, ReadError> {
        let Some(end) = self.ending.ended().cloned() else { return Ok(None) };
        let torn = self.gpu.wait().map_or(0, |wait| wait.torn());
        // After the end is reported nothing is delivered: undelivered frames never will be.
        if self.ending.report() {
            self.progress.end(self.channel.consumer().head());
        }
        if let Some(wait) = self.gpu.wait().filter(|wait| torn > 0 && wait.needs_unblocking()) {
            wait.unblock(self.exporter.take_gone(), end.is_closed());
        }
        Err(ReadError::of_end(end, torn, self.progress.undelivered()))
    }
}
