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
        // The queue page of a user who is not charged is not used again: its descriptor is not
        // needed once it is sent.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::fake::{
        Account, Attachment, Charges, Claims, Memory, file, memory, single_use_file, slot,
    };

    const QUEUE: u64 = 1000;

    /// The files of a reader, and the account of its user.
    fn files(charges: Charges) -> (Files<Account>, Account) {
        let account = Account(Arc::new(charges.into()));
        (Files::new(account.clone(), file(QUEUE)), account)
    }

    fn charged() -> (Files<Account>, Account) {
        files(Charges { is_charged: true, ..Charges::default() })
    }

    fn give(
        files: &mut Files<Account>,
        file: Arc<crate::exporter::fake::File>,
        next: u64,
    ) -> Result<(), String> {
        files.give_payload(&Attachment { payload: Some(file), ..Attachment::default() }, Sequence(next))
    }

    #[test]
    fn slots_and_payloads_are_charged() {
        let (mut files, account) = charged();
        files.give_slot(&slot(0, Memory { file: Some(file(1)), ..memory(1) })).unwrap();
        files.give_slot(&slot(1, memory(2))).unwrap();
        give(&mut files, file(3), 1).unwrap();
        files.give_payload(&Attachment::default(), Sequence(1)).unwrap();
        assert_eq!(account.0.lock().unwrap().given, [(1, Purpose::Slot), (3, Purpose::Other)]);
        account.0.lock().unwrap().is_full = true;
        assert!(give(&mut files, file(3), 1).is_err());
    }

    /// The reader may go on reading payloads in front of frames that it has not released.
    #[test]
    fn unread_payloads_are_lost_with_the_link() {
        for (released, lost) in [(1, [10, 11, 20, QUEUE].as_slice()), (2, &[20, QUEUE]), (3, &[QUEUE])] {
            let (mut files, account) = charged();
            for (size, next) in [(10, 1), (11, 1), (20, 2)] {
                give(&mut files, file(size), next).unwrap();
            }
            give(&mut files, single_use_file(30), 2).unwrap();
            files.note_released(Sequence(released));
            drop(files);
            assert_eq!(account.0.lock().unwrap().lost, lost, "released up to {released}");
        }
    }

    #[test]
    fn oldest_of_too_many_unread_payloads_is_lost() {
        let (mut files, account) = charged();
        for number in 0..=MAX_UNREAD as u64 {
            assert_eq!(account.0.lock().unwrap().lost, []);
            give(&mut files, file(number), 1).unwrap();
        }
        assert_eq!(account.0.lock().unwrap().lost, [0]);
    }

    #[test]
    fn claims_are_charged_unless_the_reader_has_ended() {
        for (is_charged, has_ended, claims_cannot_be_freed, claims, lost) in [
            (false, false, false, None, [].as_slice()),
            (false, true, false, None, &[]),
            (true, false, false, Some(Claims::Charged), &[QUEUE]),
            (true, true, false, Some(Claims::Freed), &[]),
            (true, true, true, Some(Claims::Charged), &[]),
        ] {
            let (mut files, account) =
                files(Charges { is_charged, claims_cannot_be_freed, ..Charges::default() });
            assert_eq!(files.is_charged(), is_charged);
            if has_ended {
                files.note_end();
            }
            drop(files);
            let charges = account.0.lock().unwrap();
            assert_eq!((charges.claims, &*charges.lost), (claims, lost), "{is_charged}, {has_ended}");
        }
    }
}
