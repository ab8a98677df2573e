// SPDX-License-Identifier: MIT OR Apache-2.0

//! The readers of a stream, as its background work watches them.

use crate::{
    exporter::{
        link::{Ending, Link, Presence},
        state::Shared,
    },
    sys::{Interest, Now, Received, Socket, Wake},
};
use frameshare_protocol::message::{Reason, ToExporter};
use std::{os::fd::OwnedFd, sync::Arc, time::Instant};

/// The watched parts of a link.
pub struct WatchedLink {
    pub id: u64,
    pub socket: Arc<Socket>,
    /// Readable when the process has ended.
    pub gone: Option<Arc<OwnedFd>>,
    awaits_room: bool,
    /// The wake-up socket, if frames wait for the reader's credit.
    pub wake: Option<Arc<Wake>>,
    /// Latest time of the next check.
    pub check_at: Option<Instant>,
    pub hung_up: bool,
}

impl WatchedLink {
    pub fn of(link: &Link) -> Self {
        Self {
            id: link.info.id,
            socket: link.sockets().socket().clone(),
            gone: link.sockets().pidfd().cloned(),
            awaits_room: link.outbox.awaits_room(),
            wake: (!link.backlog().is_empty()).then(|| link.sockets().wake().clone()),
            check_at: link.check_at(&Now::default()),
            hung_up: link.presence() >= Presence::HungUp,
        }
    }

    /// The events of the socket to wait for.
    pub fn interest(&self) -> Interest {
        if self.awaits_room { Interest::InputAndRoom } else { Interest::Input }
    }

    /// Handles a message of the reader, and sends it waiting ones.
    pub fn receive(&self, shared: &Shared) {
        let ending = match self.socket.receive() {
            Ok(Received::Nothing) => None,
            Ok(Received::HungUp) => Some(Ending::new(Reason::Stopped, "it hung up")),
            Ok(Received::Packet(packet, _)) => match ToExporter::decode(&packet) {
                Ok(message) => match self.handle(shared, message) {
                    Some(ending) => Some(ending),
                    None => return,
                },
                Err(error) => Some(Ending::new(Reason::Violation, error.to_string())),
            },
            Err(error) => Some(Ending::new(Reason::Violation, error.to_string())),
        };
        shared.with(|state| match ending {
            Some(ending) => state.end_link_of(self.id, &ending, false),
            None => state.flush(self.id),
        });
    }

    /// Handles a message; returns the end of the link if readers may not send it.
    fn handle(&self, shared: &Shared, message: ToExporter) -> Option<Ending> {
        let id = self.id;
        match message {
            ToExporter::Retired { generation } => shared.with(|state| state.acknowledge(id, generation)),
            ToExporter::RetiredSlot { slot } => shared.with(|state| state.acknowledge_slot(id, slot)),
            ToExporter::CannotImport { generation, text } => {
                shared.with(|state| state.cannot_import(id, generation, text));
            }
            ToExporter::RequestKeyUnit => shared.with(|state| state.request_key_unit(id)),
            ToExporter::CopiesForLayout => shared.with(|state| state.note_layout_copies(id)),
            ToExporter::Goodbye { reason, text } => {
                shared.with(|state| state.closed_by_reader(id, &Ending { reason, text }));
            }
            ToExporter::Hello(_) => {
                return Some(Ending::new(Reason::Violation, "it sent two Hello messages"));
            }
            ToExporter::Observe(_) | ToExporter::RequestSnapshot { .. } | ToExporter::Disconnect { .. } => {
                return Some(Ending::new(Reason::Violation, "it sent a message of an observer"));
            }
        }
        None
    }

    /// Takes a wake-up of the reader, which frames wait for; the rest of the turn delivers them.
    pub fn take_wake_up(&self, shared: &Shared) {
        let Some(wake) = &self.wake else { return };
        let ending = Ending::of_wake(wake.drain());
        shared.with(|state| match ending {
            Some(ending) => state.end_link_of(self.id, &ending, false),
            // It may have been meant for a waiting thread.
            None => state.interrupt_other_waits(None),
        });
    }
}
