// SPDX-License-Identifier: MIT OR Apache-2.0

//! The accounts of users, shared by the threads of an exporter.

use super::{
    Allocation,
    host::{HostAllocation, HostFile},
};
use crate::sys::file_limit;
use frameshare_core::exporter::accounts;
pub use frameshare_core::exporter::accounts::{Full, Purpose};
use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Maximum number of unused files that are kept.
const MAX_KEPT: usize = 512;

/// The accounts of one exporter. Clones share them. The lock is a leaf: it is held for bookkeeping
/// only.
#[derive(Clone, Debug)]
pub struct Accounts(Arc<Mutex<accounts::Accounts<HostFile>>>);

impl Accounts {
    /// Accounts of at most `limit` bytes each.
    pub fn new(limit: u64) -> Self {
        let share = file_limit().and_then(|limit| usize::try_from(limit / 4).ok()).unwrap_or(MAX_KEPT);
        Self(Arc::new(Mutex::new(accounts::Accounts::new(limit, share.min(MAX_KEPT)))))
    }

    fn lock(&self) -> MutexGuard<'_, accounts::Accounts<HostFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes kept memory for a slot of `size` bytes, whose content is arbitrary.
    pub fn take_slot(&self, size: u64) -> Option<Arc<dyn Allocation>> {
        let file = self.lock().take(size, Purpose::Slot)?;
        Some(Arc::new(HostAllocation { file, size }))
    }

    /// Returns a file of at least `size` bytes for something else than a slot: a kept one, or a new
    /// one of this name.
    ///
    /// # Errors
    /// The error of a system call, such as a lack of memory.
    pub fn file(&self, name: &str, size: u64) -> io::Result<Arc<HostFile>> {
        let kept = self.lock().take(size, Purpose::Other);
        kept.map_or_else(|| HostFile::reusable(name, size).map(Arc::new), Ok)
    }

    /// Bytes of kept files, which nothing uses at present.
    pub fn kept(&self) -> u64 {
        self.lock().kept()
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
        if self.is_charged { self.accounts.lock().check(self.uid, bytes) } else { Ok(()) }
    }

    /// Records that the user is given a file, before the file is sent.
    ///
    /// # Errors
    /// [`Full`].
    pub fn give(&self, file: &Arc<HostFile>, purpose: Purpose) -> Result<(), Full> {
        if !self.is_charged {
            return Ok(());
        }
        let mut accounts = self.accounts.lock();
        let freed = accounts.collect();
        let given = accounts.give(self.uid, file, purpose);
        drop(accounts);
        // Files are closed without the lock.
        drop(freed);
        given
    }

    /// Records that a reader may go on reading a file.
    pub fn lose(&self, file: &Arc<HostFile>) {
        self.accounts.lock().lose(file);
    }

    /// Charges the user for memory that is not used again.
    pub fn charge(&self, bytes: u64) {
        self.accounts.lock().charge(self.uid, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn given_memory_is_used_again_before_new_memory() {
        const SIZE: u64 = 64 << 10;
        let accounts = Accounts::new(u64::MAX);
        // Without the account, each round allocates a file: the control.
        for (is_given, files) in [(false, 20), (true, 1)] {
            let mut inodes = std::collections::BTreeSet::new();
            let mut holder = Vec::new();
            for _ in 0..20 {
                let file = accounts.file("test", SIZE).unwrap();
                if is_given {
                    accounts.of(4_000_001, true).give(&file, Purpose::Slot).unwrap();
                }
                let descriptor = file.as_fd().try_clone_to_owned().unwrap();
                inodes.insert(rustix::fs::fstat(&descriptor).unwrap().st_ino);
                holder.push(descriptor);
            }
            assert_eq!(inodes.len(), files, "{is_given}");
        }
    }
}
