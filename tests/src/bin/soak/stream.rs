// SPDX-License-Identifier: MIT OR Apache-2.0

//! One stream: an exporter, a permanent reader and two temporary ones.

use crate::{Dice, Result, child::Child};
use frameshare_tests::{census::Census, tally::Tally};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Bytes of the smallest frames; the largest are four times as long.
const SIZE: u32 = 40_000;
const FPS: u32 = 30;
/// Number of frames after which the size changes.
const RENEW: u32 = 75;

/// The end of a temporary reader.
enum Plan {
    /// Closes its connection after a number of frames.
    Leave,
    /// Is killed at a time.
    Kill(Instant),
}

struct Guest {
    child: Child,
    plan: Plan,
    is_lossless: bool,
}

pub struct Stream {
    runtime: PathBuf,
    name: String,
    exporter: Child,
    resident: Child,
    guests: [Option<Guest>; 2],
    /// Time of the exporter's next kill, for the stream whose exporter is killed.
    doom: Option<Instant>,
}

impl Stream {
    pub fn start(runtime: &Path, number: usize, is_doomed: bool) -> Result<Self> {
        let name = format!("s{number}");
        let exporter = export(runtime, &name)?;
        // Frames may be lost with a killed exporter.
        let how = if is_doomed { "latest --reconnect yes --timeout-ms 20000" } else { "lossless" };
        let resident = read(runtime, &name, &format!("--policy {how}"))?;
        let doom = is_doomed.then(|| Instant::now() + Duration::from_secs(20));
        Ok(Self { runtime: runtime.to_owned(), name, exporter, resident, guests: [None, None], doom })
    }

    /// Performs all actions that are due.
    pub fn turn(&mut self, dice: &mut Dice, tally: &mut Tally) -> Result<()> {
        if self.resident.has_ended()? || self.exporter.has_ended()? {
            return Err(format!("{}: a process has ended that should not have", self.name).into());
        }
        if self.doom.is_some_and(|doom| doom < Instant::now()) {
            self.doom = Some(Instant::now() + Duration::from_secs(10 + dice.below(30)));
            self.replace_exporter(tally)?;
        }
        for at in 0..self.guests.len() {
            let Some(mut guest) = self.guests[at].take() else {
                if dice.below(10) == 0 {
                    self.guests[at] = Some(self.invite(dice)?);
                    tally.joined += 1;
                }
                continue;
            };
            match guest.plan {
                Plan::Kill(when) if when < Instant::now() => {
                    guest.child.kill()?;
                    tally.killed += 1;
                }
                Plan::Leave if guest.child.has_ended()? => guest.see_off(self.doom.is_some(), tally)?,
                _ => self.guests[at] = Some(guest),
            }
        }
        Ok(())
    }

    /// Starts an exporter with the name of the killed one.
    fn replace_exporter(&mut self, tally: &mut Tally) -> Result<()> {
        self.exporter.kill()?;
        self.exporter = export(&self.runtime, &self.name)?;
        tally.exporters_killed += 1;
        Ok(())
    }

    fn invite(&self, dice: &mut Dice) -> Result<Guest> {
        let is_lossless = self.doom.is_none() && dice.below(2) == 0;
        let policy = if is_lossless { "lossless" } else { "latest --reconnect yes --timeout-ms 20000" };
        let (hold, held) = (dice.below(3), 4 + dice.below(4));
        let plan = match dice.below(2) {
            0 => Plan::Kill(Instant::now() + Duration::from_millis(dice.below(6000))),
            _ => Plan::Leave,
        };
        let sleep = if is_lossless { 0 } else { dice.below(120) };
        let frames = 1 + dice.below(200);
        let how =
            format!("--policy {policy} --frames {frames} --hold {hold} --max-held {held} --sleep-ms {sleep}");
        Ok(Guest { child: read(&self.runtime, &self.name, &how)?, plan, is_lossless })
    }

    /// Removes all temporary readers.
    pub fn clear(&mut self, tally: &mut Tally) -> Result<()> {
        for mut guest in self.guests.iter_mut().filter_map(Option::take) {
            guest.child.kill()?;
            tally.killed += 1;
        }
        Ok(())
    }

    pub fn census(&self) -> Result<Census> {
        Ok(Census::of(&[self.exporter.pid(), self.resident.pid()])?)
    }

    /// Stops the exporter, and checks the results of its readers.
    pub fn end(self, tally: &mut Tally) -> Result<()> {
        let Self { runtime, name, exporter, resident, doom, .. } = self;
        fs::write(runtime.join(format!("{name}.end")), "")?;
        let resident = Guest { child: resident, plan: Plan::Leave, is_lossless: doom.is_none() };
        resident.see_off(doom.is_some(), tally)?;
        let exporter = exporter.finish()?;
        if exporter.ok && exporter.summary["drained"] == true {
            return Ok(());
        }
        Err(format!("{name}: {}", exporter.summary).into())
    }
}

impl Guest {
    /// Checks a reader's result.
    fn see_off(self, is_doomed: bool, tally: &mut Tally) -> Result<()> {
        let outcome = self.child.finish()?;
        let number = |what: &str| outcome.summary[what].as_u64().unwrap_or(u64::MAX);
        let lost_too_much = self.is_lossless && number("lost") != 0;
        let ended = outcome.ok || is_doomed && outcome.summary["bad"] == 0;
        if !ended || number("bad") != 0 || lost_too_much {
            return Err(format!("a reader saw {}", outcome.summary).into());
        }
        tally.frames += number("frames");
        tally.lost += number("lost");
        tally.left += 1;
        Ok(())
    }
}

fn export(runtime: &Path, name: &str) -> Result<Child> {
    let frames = "--frames 100000000 --readers 0";
    let format = format!("--size {SIZE} --fps {FPS} --renew-every {RENEW}");
    Child::start(runtime, &format!("export --stream {name} {frames} {format} --until {name}.end"))
}

fn read(runtime: &Path, name: &str, how: &str) -> Result<Child> {
    Child::start(runtime, &format!("read --stream {name} --verify yes --quiet yes {how}"))
}
