// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by the claims page, which both sides write.

use super::{Fate, consumer, cut_off, join, take, wait_for};
use crate::Result;
use frameshare::{
    Endpoint, EntryIndex, Policy, Sequence,
    observer::{Observer, ReaderState},
};
use frameshare_protocol::{
    ReaderCopy,
    page::{Claim, ClaimState, claim_at, claims, claims_size, counters, counters_at},
};
use frameshare_tests::raw::{PATIENCE, RawReader, hello};
use rustix::net::{SendFlags, send};
use std::{
    path::Path,
    sync::atomic::Ordering::{Relaxed, SeqCst},
    thread,
    time::{Duration, Instant},
};

/// Writes the same word over every claim.
fn all_words(path: &Path, word: u64) -> Result<Fate> {
    let reader = join(path)?;
    let (entry, _) = take(&reader)?;
    reader.claims[claim_at(entry)].store(word, SeqCst);
    cut_off(&reader)
}

/// Changes the claim of a taken frame.
fn change(path: &Path, change: impl Fn(Claim) -> Claim) -> Result<Fate> {
    let reader = join(path)?;
    let (entry, sequence) = take(&reader)?;
    let claim = change(Claim { sequence, state: ClaimState::Taken });
    reader.claims[claim_at(entry)].store(claim.encode(), SeqCst);
    cut_off(&reader)
}

pub fn zero(path: &Path) -> Result<Fate> {
    all_words(path, 0)
}

pub fn ones(path: &Path) -> Result<Fate> {
    all_words(path, u64::MAX)
}

/// Marks a taken frame as published: the exporter revokes it, and finds no violation.
pub fn published_again(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    for _ in 0..20 {
        let (entry, sequence) = take(&reader)?;
        let again = Claim { sequence, state: ClaimState::Published };
        reader.claims[claim_at(entry)].store(again.encode(), SeqCst);
    }
    Ok(Fate::Left)
}

pub fn revoked(path: &Path) -> Result<Fate> {
    change(path, |claim| Claim { state: ClaimState::Revoked, ..claim })
}

/// Releases another entry's frame, and one that was reclaimed long ago.
pub fn foreign(path: &Path) -> Result<Fate> {
    change(path, |claim| Claim { sequence: Sequence(claim.sequence.0 ^ 1), ..claim })
}

pub fn ahead(path: &Path) -> Result<Fate> {
    change(path, |claim| Claim { sequence: Sequence(claim.sequence.0 + 1000), state: ClaimState::Released })
}

pub fn stale(path: &Path) -> Result<Fate> {
    change(path, |claim| Claim { sequence: claim.sequence.previous(), state: ClaimState::Released })
}

/// Releases a frame twice, until the entry carries another frame and the word is a violation.
pub fn double(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    let (entry, sequence) = take(&reader)?;
    let consumer = consumer(&reader);
    let end = Instant::now() + frameshare_tests::raw::PATIENCE;
    while Instant::now() < end {
        consumer.release(entry, sequence);
        if reader.channel.hangs_up(Duration::ZERO) {
            return Ok(Fate::CutOff);
        }
    }
    Err("the exporter does not mind".into())
}

/// Releases frames that it has not taken, which is allowed. Lossless: no frame is revoked before
/// its release.
pub fn untaken(path: &Path) -> Result<Fate> {
    let reader = RawReader::join(path, hello(Policy::Lossless, 4))?;
    let consumer = consumer(&reader);
    for _ in 0..20 {
        let found = wait_for("a frame", || consumer.oldest()?.ok())?;
        if consumer.release(found.entry, found.descriptor.sequence) {
            send(&reader.fds[3], &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        }
    }
    drop(reader);
    Ok(Fate::Left)
}

/// Takes a revoked frame. The entry then carries another frame, so the word is overwritten or a
/// violation.
pub fn flip_after_revoke(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    let word = &reader.claims[claim_at(EntryIndex(0))];
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        let claim = Claim::decode(word.load(SeqCst));
        if claim.state == ClaimState::Revoked && claim.sequence > Sequence(0) {
            word.store(Claim { state: ClaimState::Taken, ..claim }.encode(), SeqCst);
        }
    }
    Ok(Fate::Left)
}

pub fn sleeping_garbage(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    let end = Instant::now() + Duration::from_millis(200);
    while Instant::now() < end {
        reader.claims[claims::SLEEPING].store(u64::MAX, Relaxed);
        take_one(&reader);
    }
    Ok(Fate::Left)
}

/// All counters are at their end, and begin again: snapshots contain them as they are, and what
/// follows from them does not overflow.
pub fn absurd_counters(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    let counters = &reader.claims[counters_at(reader.welcome.credit as usize)..][..counters::WORDS];
    let mut observer = Observer::connect(&Endpoint::at(path)?, PATIENCE)?;
    for word in [u64::MAX, 0] {
        counters.iter().for_each(|counter| counter.store(word, SeqCst));
        take_one(&reader);
        let snapshot = observer.snapshot()?;
        let is_own = |state: &&ReaderState| state.pid == std::process::id();
        let state = snapshot.readers.iter().find(is_own).ok_or("the reader is not in the snapshot")?;
        let is_as_written = state.ages.sum == word
            && state.ages.count() == word
            && state.copies.len() == if word > 0 { ReaderCopy::ALL.len() } else { 0 };
        if !is_as_written {
            return Err(format!("{:?}, {:?} after {word}", state.ages, state.copies).into());
        }
    }
    Ok(Fate::Left)
}

fn take_one(reader: &RawReader) {
    let consumer = consumer(reader);
    if let Some(Ok(found)) = consumer.oldest()
        && consumer.claim(found.entry, found.descriptor.sequence)
    {
        consumer.release(found.entry, found.descriptor.sequence);
    }
}

/// A helper process writes all over the page while this one follows the rules.
pub fn scribble(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    let bytes = claims_size(reader.welcome.credit as usize);
    let mut child = crate::scribble::start(&reader.fds[1], bytes, Duration::from_millis(500))?;
    while child.try_wait()?.is_none() {
        take_one(&reader);
        thread::sleep(Duration::from_micros(100));
    }
    cut_off(&reader)
}
