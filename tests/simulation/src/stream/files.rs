// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory files of a simulated exporter, and the accounts of the users that were given some.
//!
//! Responsible for the rule that a user is given no memory beyond its limit. The rule counts files
//! by itself: accounts may be wrong.

use super::{
    memory::{Careless, Memory, Observed},
    outcome::Outcome,
};
use crate::task::{is_dying, step};
use frameshare_core::exporter::{
    accounts::{self, MemoryFile, Purpose},
    system,
};
use frameshare_protocol::MemoryKind;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// A memory file. Holders in the exporter's process share it; readers have its memory or its bytes.
#[derive(Debug)]
pub struct HostFile {
    memory: Memory,
    bytes: Bytes,
    is_reusable: bool,
    is_given: AtomicBool,
    /// A slot uses it. No other file has this.
    is_slot: Arc<AtomicBool>,
}

/// The bytes of a payload, as its readers have them mapped. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Bytes {
    /// The first `length` bytes.
    pub fn load(&self, length: usize) -> Vec<u8> {
        lock(&self.0)[..length].to_vec()
    }

    /// The number with this index.
    pub fn number(&self, index: usize) -> u64 {
        let bytes = lock(&self.0);
        u64::from_le_bytes(bytes[8 * index..][..8].try_into().expect("it has eight bytes"))
    }
}

impl HostFile {
    /// The bytes of a payload.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Notes that its slot has ended.
    pub fn end_slot(&self) {
        self.is_slot.store(false, Relaxed);
    }
}

impl MemoryFile for HostFile {
    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn is_reusable(&self) -> bool {
        self.is_reusable
    }

    fn is_given(&self) -> bool {
        self.is_given.load(Relaxed)
    }

    fn note_given(&self) {
        self.is_given.store(true, Relaxed);
    }
}

/// Memory of a slot: of a file, or of anything else.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Its memory, of its size or more.
    pub memory: Memory,
    /// Size in bytes.
    pub size: u64,
    /// Its file, if it is host memory of the exporter.
    pub file: Option<Arc<HostFile>>,
}

impl From<Memory> for Allocation {
    fn from(memory: Memory) -> Self {
        Self { size: memory.size(), memory, file: None }
    }
}

/// The memory of one exporter. Clones share it.
#[derive(Clone, Debug)]
pub struct Files {
    accounts: Arc<Mutex<accounts::Accounts<HostFile>>>,
    limit: u64,
    given: Arc<Mutex<BTreeMap<u32, Given>>>,
    allocated: Arc<Mutex<Vec<Observed>>>,
    careless: Careless,
}

/// The memory that a user was given.
#[derive(Debug, Default)]
struct Given {
    files: Vec<Was>,
    /// Bytes of claims that it is charged for.
    claims: u64,
}

/// A file that a user was given, which may be freed since.
#[derive(Debug)]
struct Was {
    is_slot: Arc<AtomicBool>,
    size: u64,
}

impl Was {
    /// Bytes that the stream does not need.
    fn unneeded(&self) -> u64 {
        if self.is_slot.load(Relaxed) { 0 } else { self.size }
    }
}

impl Files {
    /// No files. Of those that nothing uses, few are kept, so that some are freed.
    pub fn new(limit: u64, allocated: Arc<Mutex<Vec<Observed>>>, careless: Careless) -> Self {
        let accounts = Arc::new(Mutex::new(accounts::Accounts::new(limit, 3)));
        Self { accounts, limit, given: Arc::default(), allocated, careless }
    }

    fn make(&self, kind: MemoryKind, size: u64) -> Memory {
        let memory = Memory::new(kind, size, &self.careless);
        lock(&self.allocated).push(memory.observe());
        memory
    }

    fn file(&self, size: u64, is_reusable: bool) -> Arc<HostFile> {
        Arc::new(HostFile {
            memory: self.make(MemoryKind::Host, size),
            bytes: Bytes::default(),
            is_reusable,
            is_given: AtomicBool::new(false),
            is_slot: Arc::default(),
        })
    }

    /// Memory for a slot.
    pub fn slot(&self, kind: MemoryKind, size: u64) -> Allocation {
        if kind != MemoryKind::Host {
            return self.make(kind, size).into();
        }
        let file = self.used_again(size, Purpose::Slot).unwrap_or_else(|| self.file(size, true));
        file.is_slot.store(true, Relaxed);
        Allocation { memory: file.memory.clone(), size, file: Some(file) }
    }

    /// A file with these bytes: one that is used again if some reader `is_charged`.
    pub fn payload(&self, bytes: &[u8], is_charged: bool) -> Arc<HostFile> {
        let file = self.other(bytes.len() as u64, is_charged);
        step("write a payload");
        if !is_dying() {
            let mut content = lock(&file.bytes.0);
            if content.len() < bytes.len() {
                content.resize(bytes.len(), 0);
            }
            content[..bytes.len()].copy_from_slice(bytes);
        }
        file
    }

    /// A file for something else than a slot: one that is used again if some reader `is_charged`.
    pub fn other(&self, size: u64, is_charged: bool) -> Arc<HostFile> {
        let kept = is_charged.then(|| self.used_again(size, Purpose::Other)).flatten();
        kept.unwrap_or_else(|| self.file(size, is_charged))
    }

    fn used_again(&self, size: u64, purpose: Purpose) -> Option<Arc<HostFile>> {
        let kept = lock(&self.accounts).take(size, purpose)?;
        Outcome::UsedAgain.reach();
        Some(kept)
    }

    /// Bytes of kept files.
    pub fn kept(&self) -> u64 {
        lock(&self.accounts).kept()
    }

    /// The account of a reader's user, with so many bytes of claims.
    pub fn account(&self, uid: u32, is_charged: bool, claims: u64) -> Account {
        Account { files: self.clone(), uid, is_charged, claims }
    }
}

/// The account of a reader's user.
#[derive(Debug)]
pub struct Account {
    files: Files,
    uid: u32,
    is_charged: bool,
    claims: u64,
}

impl Account {
    /// Checks that the user may be charged for so many bytes.
    ///
    /// # Errors
    /// The reason, if the account is full.
    pub fn check(&self, bytes: u64) -> Result<(), String> {
        if !self.is_charged {
            return Ok(());
        }
        lock(&self.files.accounts).check(self.uid, bytes).map_err(|full| full.to_string())
    }
}

impl system::Account for Account {
    type File = HostFile;

    fn is_charged(&self) -> bool {
        self.is_charged
    }

    fn give(&self, file: &Arc<HostFile>, purpose: Purpose) -> Result<(), String> {
        if !self.is_charged || is_dying() {
            return Ok(());
        }
        let mut accounts = lock(&self.files.accounts);
        let freed = accounts.collect();
        let given = accounts.give(self.uid, file, purpose);
        drop(accounts);
        drop(freed);
        given.map_err(|full| {
            Outcome::AccountFull.reach();
            full.to_string()
        })?;
        let mut all = lock(&self.files.given);
        let given = all.entry(self.uid).or_default();
        if given.files.iter().any(|was| Arc::ptr_eq(&was.is_slot, &file.is_slot)) {
            return Ok(());
        }
        let before: u64 = given.files.iter().map(Was::unneeded).sum();
        let more = if purpose == Purpose::Slot { 0 } else { file.size() };
        let (charged, limit) = (before + given.claims + more, self.files.limit);
        assert!(charged <= limit, "a user may keep {charged} bytes, and the limit is {limit}");
        given.files.push(Was { is_slot: file.is_slot.clone(), size: file.size() });
        Ok(())
    }

    fn lose(&self, file: &Arc<HostFile>) {
        lock(&self.files.accounts).lose(file);
    }

    fn free_claims(&self) -> bool {
        true
    }

    fn charge_claims(&self) {
        lock(&self.files.accounts).charge(self.uid, self.claims);
        lock(&self.files.given).entry(self.uid).or_default().claims += self.claims;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|error| error.into_inner())
}
