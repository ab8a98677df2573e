// SPDX-License-Identifier: MIT OR Apache-2.0

//! One stream: an exporter, a permanent reader and two temporary ones.

use crate::Result;
use frameshare_tests::{
    census::Census,
    process::{Process, TestRun},
    random::Random,
    tally::Tally,
};
use std::{
    fs,
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

struct TemporaryReader {
    process: Process,
    plan: Plan,
    is_lossless: bool,
}

pub struct Stream<'a> {
    run: &'a TestRun,
    name: String,
    exporter: Process,
    permanent: Process,
    temporary: [Option<TemporaryReader>; 2],
    /// Time of the exporter's next kill, for the stream whose exporter is killed.
    next_kill: Option<Instant>,
}

impl<'a> Stream<'a> {
    pub fn start(run: &'a TestRun, number: usize, is_killed: bool) -> Self {
        let name = format!("s{number}");
        let exporter = export(run, &name);
        // Frames may be lost with a killed exporter.
        let policy = if is_killed { "latest --reconnect yes --timeout-ms 20000" } else { "lossless" };
        let permanent = read(run, &name, &format!("--policy {policy}"));
        let next_kill = is_killed.then(|| Instant::now() + Duration::from_secs(20));
        Self { run, name, exporter, permanent, temporary: [None, None], next_kill }
    }

    /// Performs all actions that are due.
    pub fn step(&mut self, random: &mut Random, tally: &mut Tally) -> Result<()> {
        if self.permanent.has_exited() || self.exporter.has_exited() {
            return Err(format!("{}: the exporter or the permanent reader has exited", self.name).into());
        }
        if self.next_kill.is_some_and(|kill| kill < Instant::now()) {
            self.next_kill = Some(Instant::now() + Duration::from_secs(10 + random.below(30)));
            self.replace_exporter(tally);
        }
        for at in 0..self.temporary.len() {
            let Some(mut reader) = self.temporary[at].take() else {
                if random.below(10) == 0 {
                    self.temporary[at] = Some(self.start_reader(random));
                    tally.joined += 1;
                }
                continue;
            };
            match reader.plan {
                Plan::Kill(when) if when < Instant::now() => {
                    reader.process.kill();
                    tally.killed += 1;
                }
                Plan::Leave if reader.process.has_exited() => {
                    check(reader.process, reader.is_lossless, self.next_kill.is_some(), tally)?;
                }
                _ => self.temporary[at] = Some(reader),
            }
        }
        Ok(())
    }

    /// Starts an exporter with the name of the killed one.
    fn replace_exporter(&mut self, tally: &mut Tally) {
        self.exporter.kill();
        self.exporter = export(self.run, &self.name);
        tally.exporters_killed += 1;
    }

    fn start_reader(&self, random: &mut Random) -> TemporaryReader {
        let is_lossless = self.next_kill.is_none() && random.below(2) == 0;
        let policy = if is_lossless { "lossless" } else { "latest --reconnect yes --timeout-ms 20000" };
        let (hold, held) = (random.below(3), 4 + random.below(4));
        let plan = match random.below(2) {
            0 => Plan::Kill(Instant::now() + Duration::from_millis(random.below(6000))),
            _ => Plan::Leave,
        };
        let sleep = if is_lossless { 0 } else { random.below(120) };
        let frames = 1 + random.below(200);
        let options =
            format!("--policy {policy} --frames {frames} --hold {hold} --max-held {held} --sleep-ms {sleep}");
        TemporaryReader { process: read(self.run, &self.name, &options), plan, is_lossless }
    }

    /// Removes all temporary readers.
    pub fn clear(&mut self, tally: &mut Tally) {
        for mut reader in self.temporary.iter_mut().filter_map(Option::take) {
            reader.process.kill();
            tally.killed += 1;
        }
    }

    /// Counts the resources of the exporter and of the permanent reader.
    pub fn census(&self) -> Result<[Census; 2]> {
        Ok([Census::of(self.exporter.pid())?, Census::of(self.permanent.pid())?])
    }

    /// Stops the exporter, and checks the results of its readers.
    pub fn end(self, tally: &mut Tally) -> Result<()> {
        let Self { run, name, exporter, permanent, next_kill, .. } = self;
        fs::write(run.path(&format!("{name}.end")), "")?;
        check(permanent, next_kill.is_none(), next_kill.is_some(), tally)?;
        let outcome = exporter.finish();
        if outcome.ok && outcome.summary()["drained"] == true {
            return Ok(());
        }
        Err(format!("{name}: {}", outcome.summary()).into())
    }
}

/// Checks a reader's result. A reader whose exporter was killed may have failed.
fn check(reader: Process, is_lossless: bool, is_exporter_killed: bool, tally: &mut Tally) -> Result<()> {
    let outcome = reader.finish();
    let summary = outcome.summary();
    let number = |what: &str| summary[what].as_u64().unwrap_or(u64::MAX);
    let lost_too_much = is_lossless && number("lost") != 0;
    let ended = outcome.ok || is_exporter_killed && summary["bad"] == 0;
    if !ended || number("bad") != 0 || lost_too_much {
        return Err(format!("a reader reports {summary}").into());
    }
    tally.frames += number("frames");
    tally.lost += number("lost");
    tally.left += 1;
    Ok(())
}

fn export(run: &TestRun, name: &str) -> Process {
    let frames = "--frames 100000000 --readers 0";
    let format = format!("--size {SIZE} --fps {FPS} --renew-every {RENEW}");
    run.peer(&format!("export --stream {name} {frames} {format} --until {name}.end"))
}

fn read(run: &TestRun, name: &str, options: &str) -> Process {
    run.peer(&format!("read --stream {name} --verify yes --quiet yes {options}"))
}
