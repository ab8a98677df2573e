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

#[cfg(test)]
mod tests {
    use super::{
        super::{
            fake::{Connection, Fake, Work, drain, queue_frame, stream},
            system::Sent,
        },
        *,
    };
    use frameshare_protocol::{MemoryKind, Sequence, message::ToReader};

    fn lossless_stream() -> State<Fake> {
        stream(MemoryKind::Host, Connection::default())
    }

    #[test]
    fn ended_wake_up_socket_ends_the_link() {
        let reason = |drained| ending_of(drained).map(|ending| ending.reason);
        assert_eq!(reason(Drained::Open), None);
        assert_eq!(reason(Drained::Closed), Some(Reason::Stopped));
        assert_eq!(reason(Drained::Descriptor), Some(Reason::Violation));
        for (drained, links) in [(Drained::Open, 1), (Drained::Closed, 0)] {
            let mut state = lossless_stream();
            drain(&mut state);
            state.note_wake_up(1, drained);
            assert_eq!(state.readers().draining().len(), links, "{drained:?}");
        }
    }

    #[test]
    fn socket_is_watched_until_the_connection_ends() {
        let mut state = lossless_stream();
        let watched = |socket| [Watched { id: 1, socket, room: false, wake: false, check_at: None }];
        assert_eq!(state.watch(), watched(true));
        state.readers_mut()[0].note_close();
        assert_eq!(state.watch(), watched(true), "the reader still releases frames");
        state.readers_mut()[0].hang_up(false);
        assert_eq!(state.watch(), watched(false));
    }

    #[test]
    fn wake_ups_are_watched_while_frames_wait() {
        let mut state = lossless_stream();
        state.drop_after(Work(true), Box::new(()));
        assert!(!state.watch()[0].wake && state.gpu_is_busy());
        queue_frame(&mut state);
        // After the reader is asked to send wake-ups, all readers are polled once more.
        assert!(state.watch()[0].wake && !state.gpu_is_busy());
    }

    #[test]
    fn waiting_messages_follow_a_reception() {
        let connection = Connection::default();
        let mut state = stream(MemoryKind::Host, connection.clone());
        connection.0.lock().unwrap().refuses = Some(Sent::Full);
        state.send_all(&ToReader::EndOfStream { before: Sequence(2) });
        assert!(state.watch()[0].room);
        connection.0.lock().unwrap().refuses = None;
        state.receive(1, Received::Nothing);
        assert!(!state.watch()[0].room);
        assert_eq!(connection.0.lock().unwrap().sent.len(), 1);
    }

    #[test]
    fn message_of_a_reader_is_handled() {
        let mut state = lossless_stream();
        state.receive(1, Received::Message(ToExporter::CopiesForLayout));
        assert!(state.readers().present()[0].copies_for_layout());
    }

    #[test]
    fn end_and_forbidden_messages_end_the_link() {
        for received in [
            Received::HungUp,
            Received::Invalid("garbage".into()),
            Received::Message(ToExporter::Disconnect { reader: 1 }),
        ] {
            let mut state = lossless_stream();
            drain(&mut state);
            let what = format!("{received:?}");
            state.receive(1, received);
            assert!(state.readers().draining().is_empty(), "{what}");
        }
    }
}
