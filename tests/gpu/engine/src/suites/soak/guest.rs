// SPDX-License-Identifier: MIT OR Apache-2.0

//! Guest reader: connects, reads and leaves. The controlling thread never blocks on a guest; it
//! polls it periodically and continues from its current state.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare::{FenceKind, Policy};
use frameshare_gpu_harness::random::Random;

use super::{
    LIMIT,
    stream::{PATIENCE_MS, RENEW},
    watched::Watched,
};
use crate::job::{Command, Connect, End, Read, Reply, Slow, WasRead};
use crate::peer::Peer;

pub struct Guest {
    peer: Peer,
    is_lossless: bool,
    /// Current command; `None` after the kill.
    job: Option<Command>,
    since: Instant,
    /// Commands still to run.
    to_do: VecDeque<Command>,
    /// Time at which the guest is killed, whatever it is doing.
    doom: Option<Instant>,
    /// Reading time before the kill.
    stay: Option<Duration>,
}

impl Guest {
    /// Starts a guest of a stream.
    pub fn invite(to: Connect, may_be_lossless: bool, random: &mut Random) -> Result<Guest> {
        let is_lossless = may_be_lossless && random.below(2) == 0;
        let fences = [None, Some(FenceKind::Event), Some(FenceKind::Timeline)];
        let connect = Command::Connect(Connect {
            policy: if is_lossless { Policy::Lossless } else { Policy::Latest },
            fence: fences[random.below(fences.len() as u64) as usize],
            max_held: Some(4 + random.below(4) as u32),
            seed: random.below(1 << 31),
            ..to
        });
        // A quarter of the guests are killed while they connect, most likely: that takes from
        // milliseconds to seconds. A quarter are killed while they read; the others leave by
        // themselves.
        let fate = random.below(4);
        let doom = (fate == 0).then(|| Instant::now() + Duration::from_millis(1 << random.below(12)));
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
        Ok(Guest {
            peer,
            is_lossless,
            job: Some(connect),
            since: Instant::now(),
            to_do: [read, Command::LetGo { count: usize::MAX }, Command::Disconnect].into(),
            doom,
            stay,
        })
    }

    /// Advances the guest without blocking. Returns whether its process has
    /// exited.
    pub fn turn(&mut self, watched: &Watched) -> Result<bool> {
        let Some(job) = &self.job else {
            ensure!(
                self.since.elapsed() < LIMIT,
                "a guest was killed {} s ago, but its process still exists",
                LIMIT.as_secs()
            );
            return self.peer.is_gone();
        };
        if self.doom.is_some_and(|doom| doom < Instant::now()) {
            self.send_away(watched)?;
        } else if self.peer.has_reported()? {
            match self.peer.end().with_context(|| format!("guest at {job:?}"))? {
                Reply::Connected { .. } => {
                    self.doom = self.stay.map(|stay| Instant::now() + stay).or(self.doom)
                }
                Reply::Read(read) => self.judge(&read, watched)?,
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
                "a guest has not completed {job:?} after {} s",
                LIMIT.as_secs()
            );
        }
        Ok(false)
    }

    /// Kills the guest, whatever it is doing.
    pub fn send_away(&mut self, watched: &Watched) -> Result<()> {
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

    fn judge(&self, read: &WasRead, watched: &Watched) -> Result<()> {
        ensure!(read.wrong == 0, "a guest got a wrong frame: {:?}", read.first_wrong);
        ensure!(read.end == End::Enough, "a guest ended after {} frames: {:?}", read.frames, read.end);
        ensure!(!self.is_lossless || read.lost == 0, "a lossless guest lost {} frames", read.lost);
        watched.count(|tally| {
            tally.frames += read.frames;
            tally.lost += read.lost;
        });
        Ok(())
    }
}
