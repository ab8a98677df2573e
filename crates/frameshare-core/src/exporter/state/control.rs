// SPDX-License-Identifier: MIT OR Apache-2.0

//! Control messages: format, events, end of the stream.

use super::State;
use crate::exporter::{
    ending::Ending,
    link::{Link, Packet},
    notice::Notice,
    parts::Change,
    system::System,
};
use frameshare_protocol::message::{Format, Payload, Reason, ToReader};

impl<S: System> State<S> {
    /// Announces the format of the following frames.
    pub fn set_format(&mut self, format: Format) {
        self.go_on();
        let announced = self.kind();
        let Some(change) = self.announcement.set_format(&format, announced) else { return };
        // Units may depend on those of the format before, which readers have got, if only fields
        // of the caps have changed.
        match change {
            Change::Media => self.end_units(),
            Change::Caps | Change::Memory => self.forget_units(),
        }
        if change != Change::Memory {
            self.slots.renew();
        }
        self.forget_last();
        let before = self.publications.next();
        self.arrivals.reset();
        self.adapt_queues();
        self.each_link(|link| {
            link.set_copies_for_layout(false);
            let memory = link.memory_of_frames(announced);
            link.send(&ToReader::Format { before, memory, format: format.clone() })
        });
    }

    /// Records that a reader copies frames for their layout, and counts those of the exporter's own
    /// user for the owner.
    pub fn note_layout_copies(&mut self, id: u64) {
        let found = self.readers.present_mut().iter_mut().find(|link| link.info.id == id);
        let is_news = found.is_some_and(|link| link.set_copies_for_layout(true) && link.peer().is_own);
        if is_news {
            let counts = |link: &&Link<S>| link.copies_for_layout() && link.peer().is_own;
            let readers = self.readers.present().iter().filter(counts).count();
            self.reports.tell(Notice::LayoutCopied { readers });
        }
    }

    /// Sends an event of this kind to every reader. Joining readers get the last sticky one of each
    /// kind.
    pub fn send_event(&mut self, kind: u32, sticky: bool, payload: Vec<u8>) {
        if sticky {
            self.go_on();
        }
        if self.readers.present().is_empty() && !sticky {
            return;
        }
        let payload = Payload::Inline(payload);
        let message = ToReader::Event { before: self.publications.next(), kind, sticky, payload };
        let packet = self.packet_of(&message);
        if let Some(packet) = &packet {
            self.each_link(|link| link.send_packet(packet));
        }
        if let (true, ToReader::Event { payload, .. }) = (sticky, message) {
            let sealed = packet.and_then(|packet| packet.sealed());
            let (payload, files) = sealed.unwrap_or((payload, Vec::new()));
            self.announcement.keep_event(kind, payload, files);
        }
    }

    /// Announces the end of the stream.
    pub fn end_of_stream(&mut self) {
        if self.announcement.end() {
            self.end_units();
            self.each_link(Link::report_skipped);
            self.send_all(&ToReader::EndOfStream { before: self.publications.next() });
        }
    }

    /// Continues a stream that had ended.
    pub fn go_on(&mut self) {
        self.announcement.go_on();
    }

    /// Sends one message to every reader.
    pub fn send_all(&mut self, message: &ToReader) {
        if let Some(packet) = self.packet_of(message) {
            self.each_link(|link| link.send_packet(&packet));
        }
    }

    /// Encodes a message for several readers. If files or memory for its payload have run out,
    /// readers with unreceived messages are evicted until it fits; if that does not help, all links
    /// end.
    pub fn packet_of(&mut self, message: &ToReader) -> Option<Packet<S::Attachment>> {
        self.readers.present_mut().iter_mut().for_each(Link::drop_read_payloads);
        loop {
            let charges = self.readers.present().iter().any(Link::is_charged);
            match Packet::with_payload(message, &self.system, charges) {
                Ok(packet) => return Some(packet),
                Err(error) if error.is_exhausted && self.evict_heaviest() => {}
                Err(error) => {
                    let text = format!("cannot send: {error}");
                    self.each_link(|_| Err(Ending::new(Reason::Failed, text.clone())));
                    return None;
                }
            }
        }
    }

    /// Evicts the reader whose unreceived messages take the most files, or else the most bytes.
    /// Returns false if no reader has any.
    pub fn evict_heaviest(&mut self) -> bool {
        // Readers that are evicted already lose the rest of their messages first, but for the close
        // message: memory may wait for what they do when they get it.
        let mut draining = self.readers.draining_mut().iter_mut().map(|link| &mut link.outbox);
        if let Some(outbox) = draining.find(|outbox| outbox.len() > 1) {
            outbox.clear_before_last();
            return true;
        }
        let weights = self.readers.present().iter().map(Link::weight).enumerate();
        let Some((index, (files, bytes))) = weights.max_by_key(|(_, weight)| *weight) else { return false };
        if (files, bytes) == (0, 0) {
            return false;
        }
        let text =
            format!("it has left {bytes} bytes and {files} files unread, and the exporter ran out of them");
        self.drop_link(index, &Ending::new(Reason::LimitExceeded, text));
        true
    }

    /// Sends a reader its waiting messages. For a draining reader, one of them may be the reason of
    /// its eviction.
    pub fn flush(&mut self, id: u64) {
        self.each_link(|link| if link.info.id == id { link.catch_up() } else { Ok(()) });
        let mut draining = self.readers.draining_mut().iter_mut().filter(|link| link.info.id == id);
        if let Some(ending) = draining.find_map(|link| link.catch_up().err()) {
            self.end_link_of(id, &ending, false);
        }
    }
}
