// SPDX-License-Identifier: MIT OR Apache-2.0

//! A helper process of the attacker that writes all over a page, as fast as it can.

use crate::Result;
use frameshare::Sequence;
use frameshare_protocol::page::Claim;
use frameshare_tests::{random::Random, raw::Page};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, Stdio},
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

/// Starts the helper process on a page of `bytes` bytes.
pub fn start(page: &OwnedFd, bytes: usize, time: Duration) -> Result<Child> {
    let child = Command::new(std::env::current_exe()?)
        .args(["scribble", &bytes.to_string(), &time.as_millis().to_string()])
        .stdin(Stdio::from(page.try_clone()?))
        .spawn()?;
    Ok(child)
}

/// Writes into the file that is this process's stdin.
pub fn scribble(bytes: usize, ms: u64) -> Result<()> {
    let page = Page::writable(io::stdin().as_fd(), bytes)?;
    let end = Instant::now() + Duration::from_millis(ms);
    let mut random = Random::new(1);
    while Instant::now() < end {
        for _ in 0..1000 {
            let state = random.word();
            let word = &page[(state >> 40) as usize % page.len()];
            match state >> 32 & 3 {
                // Almost valid words pass more checks than random ones.
                0 => {
                    let claim = Claim::decode(word.load(Relaxed));
                    let sequence = claim.sequence.0.wrapping_add(state >> 60) & ((1 << 62) - 1);
                    word.store(Claim { sequence: Sequence(sequence), ..claim }.encode(), Relaxed);
                }
                1 => word.store(word.load(Relaxed) ^ 1 << (state >> 58), Relaxed),
                2 => word.store(0, Relaxed),
                _ => word.store(state, Relaxed),
            }
        }
    }
    Ok(())
}
