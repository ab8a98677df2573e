// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory files that one reader was given, and when each of them may be used again.

use super::attachment::Attachment;
use crate::{
    exporter::slot::Slot,
    memory::{Account, Purpose, host::HostFile},
    sys::Words,
};
use frameshare_core::exporter::system as core;
use frameshare_protocol::Sequence;
use std::{collections::VecDeque, sync::Arc};

/// Maximum number of payload files that a reader is not known to have read, and that are kept to be
/// used again. It exceeds those that may wait for a reader or be in flight.
const MAX_UNREAD: usize = 256;

/// The files of one reader, and the account of its user. The exporter drops its reference to a file
/// when the reader does not read the file any more: a payload after a later frame, all others after
/// the reader's end.
#[derive(Debug)]
pub struct Files {
    account: Account,
    /// The queue page of a charged user, to be used again.
    queue: Option<Arc<HostFile>>,
    claims: Words,
    /// Payload files that may be used again, each with the first frame that can follow it.
    unread: VecDeque<(Sequence, Arc<HostFile>)>,
    /// The reader has ended: it reads no page and no payload any more.
    is_over: bool,
}

impl Files {
    /// The files of a connection. The user is charged for the queue already.
    pub fn new(account: Account, queue: Arc<HostFile>, claims: Words) -> Self {
        // Else its descriptor is not needed once it is sent.
        let queue = account.is_charged().then_some(queue);
        Self { account, queue, claims, unread: VecDeque::new(), is_over: false }
    }
}

impl core::Files for Files {
    type Slot = Slot;
    type Attachment = Attachment;

    fn is_charged(&self) -> bool {
        self.account.is_charged()
    }

    fn give_slot(&self, slot: &Slot) -> Result<(), String> {
        let Some(file) = slot.0.memory.file() else { return Ok(()) };
        self.account.give(file, Purpose::Slot).map_err(|full| full.to_string())
    }

    fn give_payload(&mut self, payload: &Attachment, next: Sequence) -> Result<(), String> {
        let Attachment::Payload(file) = payload else { return Ok(()) };
        self.account.give(file, Purpose::Other).map_err(|full| full.to_string())?;
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

    /// Before a reader takes a frame, it reads all payloads in front of it.
    fn note_released(&mut self, released: Sequence) {
        let read = self.unread.iter().take_while(|(next, _)| *next < released).count();
        self.unread.drain(..read);
    }

    fn note_end(&mut self) {
        self.is_over = true;
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if !self.is_over {
            let payloads = self.unread.iter().map(|(_, file)| file);
            payloads.chain(&self.queue).for_each(|file| self.account.lose(file));
        }
        // The claims are the reader's to write, so that the page cannot be used again. A reader
        // that has ended writes none that matters.
        if self.account.is_charged() && !(self.is_over && self.claims.free_pages().is_ok()) {
            self.account.charge(8 * self.claims.len() as u64);
        }
    }
}
