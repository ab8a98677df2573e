// SPDX-License-Identifier: MIT OR Apache-2.0

//! Run of child processes, until all have exited or a required one has failed.

use super::{
    environment::Environment,
    log::Log,
    process::{ChildProcess, Event, Process},
    table::Table,
};
use crate::{Job, jobs::START, report::Report};
use anyhow::{Result, bail};
use std::{
    sync::mpsc::{Receiver, Sender},
    time::{Duration, Instant},
};

/// Maximum time without progress. A recorder of a large video needs a while for its last frames.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time after a failure in which other processes may report theirs, so that all causes are shown.
const GRACE: Duration = Duration::from_millis(500);

/// Effect of an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    None,
    /// The video ended early, and all processes ended normally.
    EndedEarly,
    /// All processes were killed.
    Broken,
}

pub struct Run<'a> {
    environment: &'a Environment,
    sender: Sender<Event>,
    events: Receiver<Event>,
    children: Vec<ChildProcess>,
    table: Table,
    pub log: Log,
    pub interruption: Interruption,
    /// All readers are connected, and the exporter got the start command.
    is_started: bool,
}

impl<'a> Run<'a> {
    pub fn new(
        environment: &'a Environment,
        sender: Sender<Event>,
        events: Receiver<Event>,
        loops: u32,
    ) -> Self {
        Self {
            environment,
            sender,
            events,
            children: Vec::new(),
            table: Table::new(loops),
            log: Log::default(),
            interruption: Interruption::None,
            is_started: false,
        }
    }

    /// Starts a child process.
    pub fn start(&mut self, process: Process, job: Job) -> Result<()> {
        let child = ChildProcess::start(process, job, self.environment, self.sender.clone())?;
        self.log.register(process, child.pid());
        self.children.push(child);
        Ok(())
    }

    /// Waits until all processes have exited. The failure of a reader during playback is logged,
    /// and the other processes continue.
    ///
    /// # Errors
    ///
    /// The failures that end the run.
    pub fn wait(&mut self) -> Result<()> {
        let mut last_progress = Instant::now();
        let mut failures: Vec<(Process, String)> = Vec::new();
        let mut grace_ends = None;
        let mut is_stuck = false;
        while !self.children.is_empty() {
            match self.events.recv_timeout(Duration::from_millis(100)) {
                Ok(Event::Report(process, report)) => {
                    if self.note(process, report) {
                        last_progress = Instant::now();
                    }
                }
                Ok(Event::Said(process, line)) => self.table.say(&format!("{process}: {line}")),
                Ok(Event::Silent(process)) => {
                    last_progress = Instant::now();
                    if let Some(failure) = self.remove(process)? {
                        failures.push((process, failure));
                        grace_ends.get_or_insert(Instant::now() + GRACE);
                    }
                }
                Ok(Event::Interrupted) => self.interrupt(),
                Err(_) => {}
            }
            if grace_ends.is_some_and(|end| Instant::now() >= end) {
                if !self.can_continue_without(&failures) {
                    break;
                }
                self.continue_without(failures.drain(..));
                grace_ends = None;
            }
            if last_progress.elapsed() > PATIENCE {
                let stuck =
                    |child: &ChildProcess| (child.process, format!("made no progress for {PATIENCE:?}"));
                failures.extend(self.children.iter().map(stuck));
                is_stuck = true;
                break;
            }
        }
        self.children.clear();
        if is_stuck || !self.can_continue_without(&failures) {
            self.table.redraw(&self.log);
            failures.sort(); // the exporter's first: it may have caused the others
            let all: Vec<_> =
                failures.iter().map(|(process, how)| format!("the {} {how}", process.title())).collect();
            bail!("{}", all.join("; "));
        }
        self.continue_without(failures);
        self.table.redraw(&self.log);
        Ok(())
    }

    /// Returns whether the run can continue: playback has begun, only readers have failed, and at
    /// least one reader is left.
    fn can_continue_without(&self, failures: &[(Process, String)]) -> bool {
        let is_lost =
            |process| self.log.has_failed(process) || failures.iter().any(|(failed, _)| *failed == process);
        let is_reader = |(process, _): &(Process, _)| Process::READERS.contains(process);
        failures.is_empty()
            || self.is_started && failures.iter().all(is_reader) && !Process::READERS.into_iter().all(is_lost)
    }

    fn continue_without(&mut self, failures: impl IntoIterator<Item = (Process, String)>) {
        for (process, how) in failures {
            self.table.say(&format!("the {} {how}; the others continue", process.title()));
            self.log.fail(process, how);
        }
    }

    /// Logs a report; returns whether it shows progress.
    fn note(&mut self, process: Process, report: Report) -> bool {
        let is_progress = !matches!(report, Report::Exporter(_));
        self.log.note(process, report);
        if !is_progress {
            if !self.is_started && self.log.readers.iter().all(|reader| reader.now.is_some()) {
                self.is_started = true;
                self.with(Process::Exporter, |exporter| exporter.command(START));
            }
            self.table.draw(&self.log);
        }
        is_progress
    }

    /// Removes a process that has exited; returns the failure, if there was one.
    fn remove(&mut self, process: Process) -> Result<Option<String>> {
        let Some(index) = self.children.iter().position(|child| child.process == process) else {
            return Ok(None);
        };
        let status = self.children.remove(index).end()?;
        Ok((!status.success()).then(|| format!("failed ({status})")))
    }

    /// Ends the video, and all readers with it. A second interrupt kills all processes.
    fn interrupt(&mut self) {
        let can_end_well = self.is_started && self.interruption == Interruption::None;
        self.interruption = match can_end_well && self.with(Process::Exporter, ChildProcess::stop) {
            true => Interruption::EndedEarly,
            false => Interruption::Broken,
        };
        if self.interruption == Interruption::Broken {
            self.children.clear();
        }
    }

    fn with(&mut self, process: Process, action: impl FnOnce(&mut ChildProcess)) -> bool {
        self.children.iter_mut().find(|child| child.process == process).map(action).is_some()
    }
}
