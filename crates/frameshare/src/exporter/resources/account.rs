// SPDX-License-Identifier: MIT OR Apache-2.0

//! The account of a reader's user, and the page of claims that the reader can write.

use crate::{
    memory::{Account, Purpose, host::HostFile},
    sys::Words,
};
use frameshare_core::exporter::system as core;
use std::sync::Arc;

/// The account of one reader's user.
#[derive(Debug)]
pub struct ReaderAccount {
    pub account: Account,
    pub claims: Words,
}

impl core::Account for ReaderAccount {
    type File = HostFile;

    fn is_charged(&self) -> bool {
        self.account.is_charged()
    }

    fn give(&self, file: &Arc<HostFile>, purpose: Purpose) -> Result<(), String> {
        self.account.give(file, purpose).map_err(|full| full.to_string())
    }

    fn lose(&self, file: &Arc<HostFile>) {
        self.account.lose(file);
    }

    fn free_claims(&self) -> bool {
        self.claims.free_pages().is_ok()
    }

    fn charge_claims(&self) {
        self.account.charge(8 * self.claims.len() as u64);
    }
}
