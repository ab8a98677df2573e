// SPDX-License-Identifier: MIT OR Apache-2.0

//! The background work for the readers of a stream: their messages, wake-ups and deadlines.

use super::{
    ending::Ending,
    link::{Link, Presence},
    now::Now,
    state::State,
    system::System,
};
use crate::{Drained, SENT_OVER_WAKE};
use frameshare_protocol::message::{Reason, ToExporter};
use std::time::Instant;

/// The state of the socket of a reader after one receive.
#[derive(Debug)]
pub enum Received {
    /// Nothing.
    Nothing,
    /// The end of the connection.
    HungUp,
    /// A message.
    Message(ToExporter),
    /// Something that no correct reader sends; what, for people.
    Invalid(String),
}

/// The end of the link whose wake-up socket was drained with this result, if it is one.
pub fn ending_of(drained: Drained) -> Option<Ending> {
    match drained {
        Drained::Open => None,
        Drained::Closed => Some(Ending::new(Reason::Stopped, "it hung up")),
        Drained::Descriptor => Some(Ending::new(Reason::Violation, SENT_OVER_WAKE)),
    }
}

/// The events of one reader that the service thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The reader.
    pub id: u64,
    /// Messages and the end of the connection.
    pub socket: bool,
    /// Room in the socket.
    pub room: bool,
    /// Wake-ups, since frames wait for the reader's credit.
    pub wake: bool,
    /// Latest time of the next [`State::check_link`].
    pub check_at: Option<Instant>,
}

impl Watched {
    /// The events to wait for at this reader.
    pub fn of<S: System>(link: &Link<S>) -> Self {
        Self {
            id: link.info.id,
            socket: link.presence() < Presence::HungUp,
            room: link.outbox.awaits_room(),
            wake: !link.backlog().is_empty(),
            check_at: link.check_at(&Now::default()),
        }
    }
}

impl<S: System> State<S> {
    /// Handles what was found at the socket of a reader, and sends it waiting messages.
    pub fn receive(&mut self, id: u64, received: Received) {
        let ending = match received {
            Received::Nothing => None,
            Received::HungUp => Some(Ending::new(Reason::Stopped, "it hung up")),
            Received::Message(message) => match self.handle(id, message) {
                Some(ending) => Some(ending),
                None => return,
            },
            Received::Invalid(what) => Some(Ending::new(Reason::Violation, what)),
        };
        match ending {
            Some(ending) => self.end_link_of(id, &ending, false),
            None => self.flush(id),
        }
    }

    /// Handles a message; returns the end of the link if readers may not send it.
    fn handle(&mut self, id: u64, message: ToExporter) -> Option<Ending> {
        match message {
            ToExporter::Retired { generation } => self.acknowledge(id, generation),
            ToExporter::RetiredSlot { slot } => self.acknowledge_slot(id, slot),
            ToExporter::CannotImport { generation, text } => self.cannot_import(id, generation, text),
            ToExporter::RequestKeyUnit => self.request_key_unit(id),
            ToExporter::CopiesForLayout => self.note_layout_copies(id),
            ToExporter::Goodbye { reason, text } => self.closed_by_reader(id, &Ending { reason, text }),
            ToExporter::Hello(_) => {
                return Some(Ending::new(Reason::Violation, "it sent two Hello messages"));
            }
            ToExporter::Observe(_) | ToExporter::RequestSnapshot { .. } | ToExporter::Disconnect { .. } => {
                return Some(Ending::new(Reason::Violation, "it sent a message of an observer"));
            }
        }
        None
    }

    /// Handles a wake-up of a reader that frames wait for, which was taken with this result. The
    /// rest of the turn delivers the frames.
    pub fn note_wake_up(&mut self, id: u64, drained: Drained) {
        match ending_of(drained) {
            Some(ending) => self.end_link_of(id, &ending, false),
            // It may have been meant for a waiting thread.
            None => self.interrupt_other_waits(None),
        }
    }

    /// Names what to wait for at each reader, before the service thread sleeps. Readers that frames
    /// wait for are asked to send wake-ups.
    pub fn watch(&mut self) -> Vec<Watched> {
        self.announce_waits();
        self.readers().all().map(Watched::of).collect()
    }
}
