// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that join: their credit, and what they are sent first.

use super::State;
use crate::exporter::{
    ending::Ending,
    link::{Link, Packet, WaitingFrame},
    notice::{Notice, ReaderInfo},
    peer::Peer,
    shortage::Unsendable,
    system::System,
};
use frameshare_protocol::{
    MemoryKind, Policy,
    message::{Hello, Reason},
};

/// Files that are open while a reader is admitted, with some reserve: two pages, both ends of a
/// wake-up socket, a timeline page.
const FILES_OF_A_READER: u64 = 8;

/// Resources left to this process.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// Number of files that it may open; `None` if the system does not say.
    pub files: Option<u64>,
    /// Of how many in all.
    pub all_files: u64,
    /// Bytes of the GPU's memory; `None` without a GPU.
    pub memory: Option<u64>,
}

impl<S: System> State<S> {
    /// Reserves credit for a reader that asks for so much, or leaves it to the exporter with 0.
    /// [`State::end_promise`] follows.
    ///
    /// # Errors
    /// The refusal.
    pub fn promise(&mut self, peer: &Peer, asked: u32, left: Left) -> Result<u32, Ending> {
        self.reclaim();
        let credit_left = self.credit_left(peer.is_own_or_root);
        if credit_left == 0 {
            let but = if peer.is_own_or_root { "" } else { ", but those kept for its own user's," };
            let text =
                format!("all {} slots are promised to other readers{but} or in use", self.limits.max_slots);
            return Err(Ending::new(Reason::NoCreditLeft, text));
        }
        let asked = if asked == 0 { self.automatic_credit(credit_left) } else { asked };
        let credit = asked.min(self.limits.max_held).min(credit_left);
        self.check_files(credit, left)?;
        self.check_memory(credit, left.memory)?;
        self.readers.promise(credit);
        Ok(credit)
    }

    /// Ends the reservation of credit.
    pub fn end_promise(&mut self) {
        self.readers.end_promise();
        // A frame may wait for credit now.
        self.waiters.note_change();
    }

    /// Refuses a reader whose frames could later not be allocated for lack of files.
    fn check_files(&self, credit: u32, left: Left) -> Result<(), Ending> {
        let slots = self.slots.newest(self.slots.memory().kind).map_or(0, |one| one.len());
        let needed =
            FILES_OF_A_READER + u64::from((self.readers.credit() + credit + 2).saturating_sub(slots));
        match left.files {
            Some(files) if files < needed => {
                let text = format!(
                    "the exporter may open only {files} more of {} files, and its frames and this reader could need \
                     {needed}: raise its limit (ulimit -n)",
                    left.all_files
                );
                Err(Ending::new(Reason::Failed, text))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a reader whose frames could later not be allocated for lack of GPU memory.
    fn check_memory(&self, credit: u32, left: Option<u64>) -> Result<(), Ending> {
        let kind = self.slots.memory().kind;
        let current = self.slots.newest(kind).filter(|one| !one.is_empty());
        let (Some(left), Some(current)) = (left.filter(|_| kind != MemoryKind::Host), current) else {
            return Ok(());
        };
        let slots = u64::from(current.len());
        let more = u64::from(self.readers.credit() + credit + 2).saturating_sub(slots);
        let needed = more * (current.bytes() / slots);
        if left < needed {
            let text = format!(
                "the GPU has only {left} bytes of memory left, and the exporter's frames and this reader could need \
                 {needed}: end what else uses the GPU, or hold fewer frames"
            );
            return Err(Ending::new(Reason::Failed, text));
        }
        Ok(())
    }

    /// The identity of a new reader.
    pub fn new_reader(&mut self, peer: &Peer, hello: &Hello, credit: u32) -> ReaderInfo {
        ReaderInfo {
            id: self.readers.count(),
            pid: peer.pid,
            uid: peer.uid,
            name: hello.name.clone(),
            policy: hello.policy,
            credit,
            max_queued: match hello.policy {
                Policy::Latest if hello.max_queued == 0 => {
                    self.arrivals.automatic_queue(self.announcement.period()).min(credit)
                }
                Policy::Latest => hello.max_queued.min(credit),
                _ => credit,
            },
        }
    }

    /// Takes in a reader: what it is sent first may have to wait like everything else. It begins
    /// with the `last` frame, if there is one; a download of that goes into `target`.
    pub fn link(
        &mut self,
        link: Link<S>,
        welcome: &Packet<S::Attachment>,
        last: Option<WaitingFrame<S::Attachment>>,
        target: Option<S::Slot>,
    ) {
        self.reports.tell(Notice::ReaderAdded(link.info.clone()));
        let joining = self.readers.add(link);
        self.waiters.note_change();
        let memory = self.readers[joining].memory_of_frames(self.announcement.memory());
        let failed = |error: Unsendable| Ending::new(Reason::Failed, format!("cannot send: {error}"));
        let large = self.large_areas();
        let link = &mut self.readers[joining];
        let introduced = link.send_packet(welcome).and_then(|()| {
            let first = last.as_ref().map_or(self.publications.next(), |last| last.descriptor.sequence);
            let packets =
                self.announcement.introduction(memory, first, self.publications.next()).map_err(failed)?;
            let link = &mut self.readers[joining];
            large.iter().chain(&packets).try_for_each(|packet| link.send_packet(packet))
        });
        if let Err(ending) = introduced {
            return self.drop_link(joining, &ending);
        }
        if let Some(last) = last {
            self.deliver_last(joining, last, target);
        }
    }
}
