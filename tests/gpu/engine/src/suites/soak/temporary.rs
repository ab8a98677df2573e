// SPDX-License-Identifier: MIT OR Apache-2.0

//! Temporary reader: connects, reads and leaves. The controlling thread never blocks on a temporary
//! reader; it polls it periodically and continues from its current state.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare::{FenceKind, Policy};
use frameshare_gpu_harness::random::Random;

use super::{
    limits::{LIMIT, PATIENCE_MS, RENEW},
    watched::Watched,
};
use crate::job::{Command, Connect, End, Read, Reply, Slow, WasRead};
use crate::peer::Peer;

pub struct TemporaryReader {
    peer: Peer,
    is_lossless: bool,
    /// Current command; `None` after the kill.
    job: Option<Command>,
    since: Instant,
    /// Commands still to run.
    to_do: VecDeque<Command>,
    /// Time at which the temporary reader is killed, whatever it is doing.
    kill_at: Option<Instant>,
    /// Reading time before the kill.
    stay: Option<Duration>,
}

impl TemporaryReader {
    /// Starts a temporary reader of a stream.
    pub fn start(to: Connect, may_be_lossless: bool, random: &mut Random) -> Result<TemporaryReader> {
        let is_lossless = may_be_lossless && random.below(2) == 0;
        let fences = [None, Some(FenceKind::Event), Some(FenceKind::Timeline)];
        let connect = Command::Connect(Connect {
            policy: if is_lossless { Policy::Lossless } else { Policy::Latest },
            fence: fences[random.below(fences.len() as u64) as usize],
            max_held: Some(4 + random.below(4) as u32),
            seed: random.below(1 << 31),
            ..to
        });
        // A quarter of the temporary readers are killed while they connect, most likely: that takes
        // from milliseconds to seconds. A quarter are killed while they read; the others leave by
        // themselves.
        let fate = random.below(4);
        let kill_at = (fate == 0).then(|| Instant::now() + Duration::from_millis(1 << random.below(12)));
        let stay = (fate == 1).then(|| Duration::from_millis(random.below(1500)));
        let read = Command::Read(Read {
            frames: stay.is_none().then(|| 1 + random.below(3 * RENEW)),
            hold: random.below(3) as usize,
            slow: if is_lossless { Slow::Never } else { Slow::Sometimes(200_000) },
            patience_ms: PATIENCE_MS,
            ..Read::default()
        });
        let peer = Peer::new()?;
        peer.begin(&connect)?;
        Ok(TemporaryReader {
            peer,
            is_lossless,
            job: Some(connect),
            since: Instant::now(),
            to_do: [read, Command::ReleaseHeld { count: usize::MAX }, Command::Disconnect].into(),
            kill_at,
            stay,
        })
    }

    /// Advances the temporary reader without blocking. Returns whether its process has
    /// exited.
    pub fn step(&mut self, watched: &Watched) -> Result<bool> {
        let Some(job) = &self.job else {
            ensure!(
                self.since.elapsed() < LIMIT,
                "a temporary reader was killed {} s ago, but its process still exists",
                LIMIT.as_secs()
            );
            return self.peer.has_exited();
        };
        if self.kill_at.is_some_and(|kill_at| kill_at < Instant::now()) {
            self.remove(watched)?;
        } else if self.peer.has_reported()? {
            match self.peer.end().with_context(|| format!("temporary reader at {job:?}"))? {
                Reply::Connected { .. } => {
                    self.kill_at = self.stay.map(|stay| Instant::now() + stay).or(self.kill_at)
                }
                Reply::Read(read) => self.check(&read, watched)?,
                _ => {}
            }
            match self.to_do.pop_front() {
                Some(next) => {
                    self.peer.begin(&next)?;
                    (self.job, self.since) = (Some(next), Instant::now());
                }
                None => {
                    watched.count(|tally| tally.left += 1);
                    self.kill()?;
                }
            }
        } else {
            ensure!(
                self.since.elapsed() < LIMIT,
                "a temporary reader has not completed {job:?} after {} s",
                LIMIT.as_secs()
            );
        }
        Ok(false)
    }

    /// Kills the temporary reader, whatever it is doing.
    pub fn remove(&mut self, watched: &Watched) -> Result<()> {
        if self.job.is_some() {
            watched.count(|tally| tally.killed += 1);
            self.kill()?;
        }
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        (self.job, self.since) = (None, Instant::now());
        self.peer.kill_without_waiting()
    }

    fn check(&self, read: &WasRead, watched: &Watched) -> Result<()> {
        ensure!(read.wrong == 0, "a temporary reader got a wrong frame: {:?}", read.first_wrong);
        ensure!(
            read.end == End::Enough,
            "a temporary reader ended after {} frames: {:?}",
            read.frames,
            read.end
        );
        ensure!(!self.is_lossless || read.lost == 0, "a lossless temporary reader lost {} frames", read.lost);
        watched.count(|tally| {
            tally.frames += read.frames;
            tally.lost += read.lost;
        });
        Ok(())
    }
}
