// SPDX-License-Identifier: MIT OR Apache-2.0

//! Accounts of users: the memory that an exporter has given them and does not need any more.
//!
//! No call shows that the last mapping of a memory file has ended, nor that its last descriptor is
//! closed: its holder may have passed it on, and may have disconnected or exited since. The pages
//! of the file stay allocated until then, and count as the exporter's (memory cgroups charge the
//! process that wrote a page first). So memory that was given to a user who is not trusted is not
//! freed when the exporter does not need it any more:
//!
//! - It is kept, and used before new memory is allocated. Keeping it costs nothing more.
//! - Each user that it was given to is charged for it until it is a slot again. Memory that a
//!   reader may still read, and that is not used again therefore, is charged for good.
//!
//! A slot in use is not charged: the stream needs it with or without the user, and credit and
//! `max_slots` bound the number of slots.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

/// A memory file that users may be given. A reference is a holder in the exporter's process.
pub trait MemoryFile: Debug + Send + Sync + 'static {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Returns whether the file may be used again when its last holder but one drops it.
    fn is_reusable(&self) -> bool;
    /// Returns whether a charged user was given the file.
    fn is_given(&self) -> bool;
    /// Notes that a charged user is given the file.
    fn note_given(&self);
}

/// The use of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A slot. Any kept file of its size or more is used again.
    Slot,
    /// Anything else: a payload, a queue. Kept files are used again that are not much larger, since
    /// the user is charged for the whole file.
    Other,
}

/// A file that was given to users.
#[derive(Debug)]
struct Given<F> {
    file: Arc<F>,
    users: Vec<u32>,
    purpose: Purpose,
    /// A reader may still read the present content, and nothing will show that it has.
    is_lost: bool,
}

impl<F: MemoryFile> Given<F> {
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.file) == 1
    }

    /// Returns whether a user is charged for the file.
    fn is_charged_to(&self, uid: u32) -> bool {
        self.users.contains(&uid) && (self.purpose == Purpose::Other || self.is_unused())
    }
}

/// The accounts of one exporter.
#[derive(Debug)]
pub struct Accounts<F> {
    given: Vec<Given<F>>,
    /// Bytes of freed files, by user.
    freed: BTreeMap<u32, u64>,
    limit: u64,
    max_kept: usize,
}

/// The account of a user is full.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "user {uid} may have {charged} bytes of memory mapped that the stream does not need any more, and the limit is \
     {limit} bytes: raise max_retired_bytes, or restart the exporter"
)]
pub struct Full {
    uid: u32,
    charged: u64,
    limit: u64,
}

impl<F: MemoryFile> Accounts<F> {
    /// Accounts of at most `limit` bytes each. Of unused files at most `max_kept` are kept: the
    /// smallest ones beyond it are freed, and stay charged.
    pub fn new(limit: u64, max_kept: usize) -> Self {
        Self { given: Vec::new(), freed: BTreeMap::new(), limit, max_kept }
    }

    /// Bytes that a user is charged for.
    pub fn charged(&self, uid: u32) -> u64 {
        let given = self.given.iter().filter(|given| given.is_charged_to(uid));
        self.freed.get(&uid).copied().unwrap_or(0) + given.map(|given| given.file.size()).sum::<u64>()
    }

    /// Bytes of kept files, which nothing uses at present.
    pub fn kept(&self) -> u64 {
        self.given.iter().filter(|given| given.is_unused()).map(|given| given.file.size()).sum()
    }

    /// Checks that a user may be given memory, and be charged for `bytes` of it.
    ///
    /// # Errors
    /// [`Full`].
    pub fn check(&self, uid: u32, bytes: u64) -> Result<(), Full> {
        let (charged, limit) = (self.charged(uid), self.limit);
        if charged + bytes > limit { Err(Full { uid, charged, limit }) } else { Ok(()) }
    }

    /// Takes a kept file of at least `size` bytes, whose content is arbitrary.
    pub fn take(&mut self, size: u64, purpose: Purpose) -> Option<Arc<F>> {
        let most = if purpose == Purpose::Slot { u64::MAX } else { size.saturating_mul(4) };
        let fits = |given: &&mut Given<F>| {
            given.is_unused() && !given.is_lost && (size..=most).contains(&given.file.size())
        };
        let given = self.given.iter_mut().filter(fits).min_by_key(|given| given.file.size())?;
        // Orders the last holder's accesses before; there is no other reference.
        Arc::get_mut(&mut given.file)?;
        given.purpose = purpose;
        Some(given.file.clone())
    }

    /// Forgets unused files that are lost, and the smallest ones beyond those that are kept.
    /// Returns them, to be freed.
    pub fn collect(&mut self) -> Vec<Arc<F>> {
        let unused = self.given.iter().filter(|given| given.is_unused() && !given.is_lost).count();
        if unused > self.max_kept {
            self.given.sort_by_key(|given| given.file.size());
        }
        let mut surplus = unused.saturating_sub(self.max_kept);
        let is_freed = |given: &mut Given<F>| {
            let is_surplus = given.is_unused() && !given.is_lost && surplus > 0;
            surplus -= usize::from(is_surplus);
            is_surplus || (given.is_unused() && given.is_lost)
        };
        let freed = Vec::from_iter(self.given.extract_if(.., is_freed));
        for given in &freed {
            for uid in &given.users {
                *self.freed.entry(*uid).or_default() += given.file.size();
            }
        }
        freed.into_iter().map(|given| given.file).collect()
    }

    /// Records that a user is given a file, before the file is sent. A file that he was given
    /// before is no further memory.
    ///
    /// # Errors
    /// [`Full`].
    pub fn give(&mut self, uid: u32, file: &Arc<F>, purpose: Purpose) -> Result<(), Full> {
        let known = self.given.iter().position(|given| Arc::ptr_eq(&given.file, file));
        if known.is_none_or(|index| !self.given[index].users.contains(&uid)) {
            self.check(uid, if purpose == Purpose::Slot { 0 } else { file.size() })?;
        }
        match known.and_then(|index| self.given.get_mut(index)) {
            Some(given) if given.users.contains(&uid) => {}
            Some(given) => given.users.push(uid),
            None => {
                file.note_given();
                let is_lost = !file.is_reusable();
                self.given.push(Given { file: file.clone(), users: vec![uid], purpose, is_lost });
            }
        }
        Ok(())
    }

    /// Records that a reader may go on reading a file, and that nothing will show when it has. The
    /// file is not used again.
    pub fn lose(&mut self, file: &Arc<F>) {
        if let Some(given) = self.given.iter_mut().find(|given| Arc::ptr_eq(&given.file, file)) {
            given.is_lost = true;
        }
    }

    /// Charges a user for memory that is not used again.
    pub fn charge(&mut self, uid: u32, bytes: u64) {
        *self.freed.entry(uid).or_default() += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::fake::{File, file, single_use_file};

    const A: u32 = 4_000_001;
    const B: u32 = 4_000_002;
    const SIZE: u64 = 64 << 10;

    fn slot(accounts: &mut Accounts<File>, size: u64) -> Arc<File> {
        accounts.take(size, Purpose::Slot).unwrap_or_else(|| file(size))
    }

    #[test]
    fn user_is_charged_for_memory_while_no_slot_uses_it() {
        let mut accounts = Accounts::new(u64::MAX, 10);
        let first = slot(&mut accounts, SIZE);
        accounts.give(A, &first, Purpose::Slot).unwrap();
        assert_eq!((accounts.charged(A), accounts.kept()), (0, 0));
        drop(first);
        assert_eq!((accounts.charged(A), accounts.charged(B), accounts.kept()), (SIZE, 0, SIZE));
        // A smaller slot takes it.
        let second = slot(&mut accounts, SIZE / 2);
        assert_eq!((second.size(), accounts.charged(A), accounts.kept()), (SIZE, 0, 0));
        accounts.give(B, &second, Purpose::Slot).unwrap();
        drop(second);
        assert_eq!((accounts.charged(A), accounts.charged(B)), (SIZE, SIZE));
        // A larger one does not.
        assert_eq!(slot(&mut accounts, 2 * SIZE).size(), 2 * SIZE);
        assert_eq!(accounts.charged(A), SIZE);
    }

    #[test]
    fn full_account_gets_no_further_memory() {
        let mut accounts = Accounts::new(2 * SIZE, 10);
        let [first, second, third] = [(); 3].map(|()| file(SIZE));
        accounts.give(A, &first, Purpose::Other).unwrap();
        accounts.give(A, &second, Purpose::Other).unwrap();
        let full = accounts.give(A, &third, Purpose::Other).unwrap_err().to_string();
        assert!(full.contains("user 4000001") && full.contains("131072 bytes"), "{full}");
        assert!(first.is_given() && !third.is_given());
        accounts.give(A, &first, Purpose::Other).expect("it has that one");
        accounts.give(B, &third, Purpose::Other).expect("the account of another user");
        // A slot in use is not charged, and a full account has no room for bytes.
        accounts.give(A, &file(SIZE), Purpose::Slot).unwrap();
        assert!(accounts.check(A, 0).is_err());
        assert!(
            accounts.give(A, &file(SIZE), Purpose::Slot).is_err(),
            "the slot before is kept and charged by now"
        );
    }

    #[test]
    fn lost_and_surplus_files_are_freed_and_stay_charged() {
        let mut accounts = Accounts::new(u64::MAX, 2);
        let given = |accounts: &mut Accounts<File>, size| {
            drop(accounts.collect());
            let file = file(size);
            accounts.give(A, &file, Purpose::Other).unwrap();
            file
        };
        let lost = given(&mut accounts, SIZE);
        accounts.lose(&lost);
        drop(lost);
        assert!(accounts.take(SIZE, Purpose::Slot).is_none());
        let files = [4, 1, 3, 2].map(|pages| given(&mut accounts, pages * SIZE));
        drop(files);
        // The next gift collects: the two smallest files and the lost one are freed.
        let _last = given(&mut accounts, SIZE);
        assert_eq!((accounts.charged(A), accounts.kept()), (12 * SIZE, 7 * SIZE));
        assert_eq!(accounts.take(1, Purpose::Slot).unwrap().size(), 3 * SIZE);
    }

    /// A user is charged for whole files.
    #[test]
    fn small_payload_takes_no_large_file() {
        let mut accounts = Accounts::new(u64::MAX, 10);
        let large = slot(&mut accounts, 16 * SIZE);
        accounts.give(A, &large, Purpose::Slot).unwrap();
        drop(large);
        assert!(accounts.take(SIZE, Purpose::Other).is_none());
        assert_eq!(accounts.take(4 * SIZE, Purpose::Other).unwrap().size(), 16 * SIZE);
    }

    #[test]
    fn file_that_two_users_have_is_charged_to_both() {
        let mut accounts = Accounts::new(2 * SIZE, 10);
        let shared = file(SIZE);
        for user in [A, B, A, B] {
            accounts.give(user, &shared, Purpose::Other).unwrap();
        }
        accounts.charge(A, SIZE / 2);
        accounts.charge(A, SIZE / 2);
        assert_eq!((accounts.charged(A), accounts.charged(B)), (2 * SIZE, SIZE));
        accounts.give(A, &shared, Purpose::Other).expect("it has that one");
        // Each user is charged once for the file when it is freed.
        accounts.lose(&shared);
        drop(shared);
        accounts.collect();
        assert_eq!((accounts.charged(A), accounts.charged(B)), (2 * SIZE, SIZE));
    }

    #[test]
    fn single_use_file_is_freed_and_takes_no_kept_place() {
        let mut accounts = Accounts::new(u64::MAX, 1);
        let (kept, in_use) = (file(SIZE), file(SIZE));
        for file in [&kept, &in_use, &single_use_file(SIZE)] {
            accounts.give(A, file, Purpose::Other).unwrap();
        }
        drop(kept);
        // Of three files one is unused, one in use, and one lost.
        assert_eq!(accounts.collect().len(), 1);
        assert_eq!((accounts.kept(), accounts.charged(A)), (SIZE, 3 * SIZE));
        drop(in_use);
    }
}
