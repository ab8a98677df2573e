// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory files that one reader was given, and when each of them may be used again.

use crate::exporter::{
    accounts::{MemoryFile, Purpose},
    system::{Account, Attachment, Slot},
};
use frameshare_protocol::Sequence;
use std::{collections::VecDeque, sync::Arc};

/// Maximum number of payload files that a reader is not known to have read, and that are kept to be
/// used again. It exceeds those that may wait for a reader or be in flight.
const MAX_UNREAD: usize = 256;

/// The files of one reader, and the account of its user. The exporter drops its reference to a file
/// when the reader does not read the file any more: a payload after a later frame, all others after
/// the reader's end.
#[derive(Debug)]
pub struct Files<A: Account> {
    account: A,
    /// The queue page of a charged user, to be used again.
    queue: Option<Arc<A::File>>,
    /// Payload files that may be used again, each with the first frame that can follow it.
    unread: VecDeque<(Sequence, Arc<A::File>)>,
    /// The reader has ended: it reads no page and no payload any more.
    is_over: bool,
}

impl<A: Account> Files<A> {
    /// The files of a connection. The user is charged for the queue already.
    pub fn new(account: A, queue: Arc<A::File>) -> Self {
        // Else its descriptor is not needed once it is sent.
        let queue = account.is_charged().then_some(queue);
        Self { account, queue, unread: VecDeque::new(), is_over: false }
    }

    /// Returns whether the reader's user is charged.
    pub fn is_charged(&self) -> bool {
        self.account.is_charged()
    }

    /// Charges for a slot.
    ///
    /// # Errors
    /// The reason, for people, if the account is full.
    pub fn give_slot(&self, slot: &impl Slot<File = A::File>) -> Result<(), String> {
        slot.file().map_or(Ok(()), |file| self.account.give(file, Purpose::Slot))
    }

    /// Charges for the file of a payload in front of the frame `next`.
    ///
    /// # Errors
    /// As [`Files::give_slot`].
    pub fn give_payload(
        &mut self,
        payload: &impl Attachment<File = A::File>,
        next: Sequence,
    ) -> Result<(), String> {
        let Some(file) = payload.payload() else { return Ok(()) };
        self.account.give(file, Purpose::Other)?;
        if file.is_reusable() {
            self.unread.push_back((next, file.clone()));
        }
        if self.unread.len() > MAX_UNREAD
            && let Some((_, file)) = self.unread.pop_front()
        {
            self.account.lose(&file);
        }
        Ok(())
    }

    /// Drops payloads that are read. `released` is behind the last frame that the reader took and
    /// released: before it takes a frame, it reads all payloads in front of it.
    pub fn note_released(&mut self, released: Sequence) {
        let read = self.unread.iter().take_while(|(next, _)| *next < released).count();
        self.unread.drain(..read);
    }

    /// Records that the reader has closed its connection, or ended.
    pub fn note_end(&mut self) {
        self.is_over = true;
    }
}

impl<A: Account> Drop for Files<A> {
    fn drop(&mut self) {
        if !self.is_over {
            let payloads = self.unread.iter().map(|(_, file)| file);
            payloads.chain(&self.queue).for_each(|file| self.account.lose(file));
        }
        // The claims are the reader's to write, so that the page cannot be used again. A reader
        // that has ended writes none that matters.
        if self.account.is_charged() && !(self.is_over && self.account.free_claims()) {
            self.account.charge_claims();
        }
    }
}
