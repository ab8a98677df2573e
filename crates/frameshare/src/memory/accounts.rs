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
//!
//! The lock is a leaf: it is held for bookkeeping only.

use super::{
    Allocation,
    host::{HostAllocation, HostFile},
};
use crate::sys::file_limit;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Maximum number of unused files that are kept. The smallest ones beyond it are freed, and stay
/// charged.
const MAX_KEPT: usize = 512;

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
struct Given {
    file: Arc<HostFile>,
    users: Vec<u32>,
    purpose: Purpose,
    /// A reader may still read the present content, and nothing will show that it has.
    is_lost: bool,
}

impl Given {
    fn is_unused(&self) -> bool {
        Arc::strong_count(&self.file) == 1
    }

    /// Returns whether a user is charged for the file.
    fn is_charged_to(&self, uid: u32) -> bool {
        self.users.contains(&uid) && (self.purpose == Purpose::Other || self.is_unused())
    }
}

#[derive(Debug, Default)]
struct Books {
    given: Vec<Given>,
    /// Bytes of freed files, by user.
    freed: BTreeMap<u32, u64>,
}

impl Books {
    fn charged(&self, uid: u32) -> u64 {
        let given = self.given.iter().filter(|given| given.is_charged_to(uid));
        self.freed.get(&uid).copied().unwrap_or(0) + given.map(|given| given.file.size()).sum::<u64>()
    }

    /// Frees unused files that are lost, and the smallest ones of those beyond `most`. Returns them
    /// to be dropped without the lock.
    fn collect(&mut self, most: usize) -> Vec<Given> {
        let unused = self.given.iter().filter(|given| given.is_unused() && !given.is_lost).count();
        if unused > most {
            self.given.sort_by_key(|given| given.file.size());
        }
        let mut surplus = unused.saturating_sub(most);
        let is_freed = |given: &mut Given| {
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
        freed
    }
}

/// The accounts of one exporter. Clones share them.
#[derive(Clone, Debug)]
pub struct Accounts {
    books: Arc<Mutex<Books>>,
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

impl Accounts {
    /// Accounts of at most `limit` bytes each.
    pub fn new(limit: u64) -> Self {
        let share = file_limit().and_then(|limit| usize::try_from(limit / 4).ok()).unwrap_or(MAX_KEPT);
        Self { books: Arc::default(), limit, max_kept: share.min(MAX_KEPT) }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a kept file of at least `size` bytes, whose content is arbitrary.
    pub fn take(&self, size: u64, purpose: Purpose) -> Option<Arc<HostFile>> {
        let mut books = self.books();
        let most = if purpose == Purpose::Slot { u64::MAX } else { size.saturating_mul(4) };
        let fits = |given: &&mut Given| {
            given.is_unused() && !given.is_lost && (size..=most).contains(&given.file.size())
        };
        let given = books.given.iter_mut().filter(fits).min_by_key(|given| given.file.size())?;
        // Orders the last holder's accesses before; there is no other reference.
        Arc::get_mut(&mut given.file)?;
        given.purpose = purpose;
        Some(given.file.clone())
    }

    /// Takes kept memory for a slot of `size` bytes.
    pub fn take_slot(&self, size: u64) -> Option<Arc<dyn Allocation>> {
        Some(Arc::new(HostAllocation { file: self.take(size, Purpose::Slot)?, size }))
    }

    /// Returns a file of at least `size` bytes for something else than a slot: a kept one, or a new
    /// one of this name.
    ///
    /// # Errors
    /// The error of a system call, such as a lack of memory.
    pub fn file(&self, name: &str, size: u64) -> std::io::Result<Arc<HostFile>> {
        match self.take(size, Purpose::Other) {
            Some(kept) => Ok(kept),
            None => Ok(Arc::new(HostFile::reusable(name, size)?)),
        }
    }

    /// Bytes of kept files, which nothing uses at present.
    pub fn kept(&self) -> u64 {
        let books = self.books();
        books.given.iter().filter(|given| given.is_unused()).map(|given| given.file.size()).sum()
    }

    /// The account of a user, who is charged unless it is trusted with memory.
    pub fn of(&self, uid: u32, is_charged: bool) -> Account {
        Account { accounts: self.clone(), uid, is_charged }
    }
}

/// The account of one user. Clones share it.
#[derive(Clone, Debug)]
pub struct Account {
    accounts: Accounts,
    uid: u32,
    is_charged: bool,
}

impl Account {
    /// Returns whether the user is charged. Otherwise its account is never full.
    pub fn is_charged(&self) -> bool {
        self.is_charged
    }

    /// Checks that the user may be given memory, and be charged for `bytes` of it.
    ///
    /// # Errors
    /// [`Full`].
    pub fn check(&self, bytes: u64) -> Result<(), Full> {
        if self.is_charged { self.check_in(&self.accounts.books(), bytes) } else { Ok(()) }
    }

    fn check_in(&self, books: &Books, bytes: u64) -> Result<(), Full> {
        let (uid, charged, limit) = (self.uid, books.charged(self.uid), self.accounts.limit);
        if charged + bytes > limit { Err(Full { uid, charged, limit }) } else { Ok(()) }
    }

    /// Records that the user is given a file, before it is. A file that he was given before is no
    /// further memory.
    ///
    /// # Errors
    /// [`Full`].
    pub fn give(&self, file: &Arc<HostFile>, purpose: Purpose) -> Result<(), Full> {
        if !self.is_charged {
            return Ok(());
        }
        let mut books = self.accounts.books();
        let freed = books.collect(self.accounts.max_kept);
        let known = books.given.iter().position(|given| Arc::ptr_eq(&given.file, file));
        if known.is_none_or(|index| !books.given[index].users.contains(&self.uid)) {
            self.check_in(&books, if purpose == Purpose::Slot { 0 } else { file.size() })?;
        }
        match known.and_then(|index| books.given.get_mut(index)) {
            Some(given) if given.users.contains(&self.uid) => {}
            Some(given) => given.users.push(self.uid),
            None => {
                file.note_given();
                let file_is_reusable = file.is_reusable();
                let (file, users) = (file.clone(), vec![self.uid]);
                books.given.push(Given { file, users, purpose, is_lost: !file_is_reusable });
            }
        }
        drop(books);
        drop(freed);
        Ok(())
    }

    /// Records that a reader may go on reading a file, and that nothing will show when it has. The
    /// file is not used again.
    pub fn lose(&self, file: &Arc<HostFile>) {
        let mut books = self.accounts.books();
        if let Some(given) = books.given.iter_mut().find(|given| Arc::ptr_eq(&given.file, file)) {
            given.is_lost = true;
        }
    }

    /// Charges the user for memory that is not used again.
    pub fn charge(&self, bytes: u64) {
        *self.accounts.books().freed.entry(self.uid).or_default() += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u32 = 4_000_001;
    const B: u32 = 4_000_002;
    const SIZE: u64 = 64 << 10;

    fn slot(accounts: &Accounts, size: u64) -> Arc<HostFile> {
        accounts
            .take(size, Purpose::Slot)
            .unwrap_or_else(|| Arc::new(HostFile::reusable("test", size).unwrap()))
    }

    fn charged(accounts: &Accounts, uid: u32) -> u64 {
        accounts.books().charged(uid)
    }

    #[test]
    fn given_memory_is_used_again_before_new_memory() {
        let accounts = Accounts::new(u64::MAX);
        // Without the account, each round allocates a file: the control.
        for (is_given, files) in [(false, 20), (true, 1)] {
            let mut inodes = std::collections::BTreeSet::new();
            let mut holder = Vec::new();
            for _ in 0..20 {
                let file = slot(&accounts, SIZE);
                if is_given {
                    accounts.of(A, true).give(&file, Purpose::Slot).unwrap();
                }
                let descriptor = std::os::fd::AsFd::as_fd(&*file).try_clone_to_owned().unwrap();
                inodes.insert(rustix::fs::fstat(&descriptor).unwrap().st_ino);
                holder.push(descriptor);
            }
            assert_eq!(inodes.len(), files, "{is_given}");
        }
    }

    #[test]
    fn user_is_charged_for_memory_while_no_slot_uses_it() {
        let accounts = Accounts::new(u64::MAX);
        let first = slot(&accounts, SIZE);
        accounts.of(A, true).give(&first, Purpose::Slot).unwrap();
        assert_eq!((charged(&accounts, A), accounts.kept()), (0, 0));
        drop(first);
        assert_eq!((charged(&accounts, A), charged(&accounts, B), accounts.kept()), (SIZE, 0, SIZE));
        // A smaller slot takes it.
        let second = slot(&accounts, SIZE / 2);
        assert_eq!((second.size(), charged(&accounts, A), accounts.kept()), (SIZE, 0, 0));
        accounts.of(B, true).give(&second, Purpose::Slot).unwrap();
        drop(second);
        assert_eq!((charged(&accounts, A), charged(&accounts, B)), (SIZE, SIZE));
        // A larger one does not.
        assert_eq!(slot(&accounts, 2 * SIZE).size(), 2 * SIZE);
        assert_eq!(charged(&accounts, A), SIZE);
    }

    #[test]
    fn full_account_gets_no_further_memory() {
        let accounts = Accounts::new(2 * SIZE);
        let payload = || Arc::new(HostFile::reusable("test", SIZE).unwrap());
        let [first, second, third] = [(); 3].map(|()| payload());
        let a = accounts.of(A, true);
        a.give(&first, Purpose::Other).unwrap();
        a.give(&second, Purpose::Other).unwrap();
        let full = a.give(&third, Purpose::Other).unwrap_err().to_string();
        assert!(full.contains("user 4000001") && full.contains("131072 bytes"), "{full}");
        assert!(!third.is_given());
        a.give(&first, Purpose::Other).expect("it has that one");
        accounts.of(B, true).give(&third, Purpose::Other).expect("the account of another user");
        // A slot in use is not charged, and a full account has no room for bytes.
        a.give(&payload(), Purpose::Slot).unwrap();
        assert!(a.check(0).is_err());
        assert!(a.give(&payload(), Purpose::Slot).is_err(), "the slot before is kept and charged by now");
    }

    #[test]
    fn lost_and_surplus_files_are_freed_and_stay_charged() {
        let mut accounts = Accounts::new(u64::MAX);
        accounts.max_kept = 2;
        let a = accounts.of(A, true);
        let given = |size| {
            let file = Arc::new(HostFile::reusable("test", size).unwrap());
            a.give(&file, Purpose::Other).unwrap();
            file
        };
        let lost = given(SIZE);
        a.lose(&lost);
        drop(lost);
        assert!(accounts.take(SIZE, Purpose::Slot).is_none());
        drop([4, 1, 3, 2].map(|pages| given(pages * SIZE)));
        // The next gift collects: the two smallest files and the lost one are freed.
        let _last = given(SIZE);
        assert_eq!((charged(&accounts, A), accounts.kept()), (12 * SIZE, 7 * SIZE));
        assert_eq!(accounts.take(1, Purpose::Slot).unwrap().size(), 3 * SIZE);
    }

    /// A user is charged for whole files.
    #[test]
    fn small_payload_takes_no_large_file() {
        let accounts = Accounts::new(u64::MAX);
        let large = slot(&accounts, 16 * SIZE);
        accounts.of(A, true).give(&large, Purpose::Slot).unwrap();
        drop(large);
        assert_eq!(accounts.file("test", SIZE).unwrap().size(), SIZE);
        assert_eq!(accounts.file("test", 4 * SIZE).unwrap().size(), 16 * SIZE);
    }
}
