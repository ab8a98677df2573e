// SPDX-License-Identifier: MIT OR Apache-2.0

//! Run of child processes, until all have exited or a required one has failed.

use super::{
    child::{Actor, Event, Part},
    log::Log,
    stage::Stage,
    table::Table,
};
use crate::{Role, report::Report, roles::PLAY};
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
    FilmCut,
    /// All processes were killed.
    Broken,
}

pub struct Scene<'a> {
    stage: &'a Stage,
    sender: Sender<Event>,
    events: Receiver<Event>,
    actors: Vec<Actor>,
    table: Table,
    pub log: Log,
    pub interruption: Interruption,
    /// All readers are connected, and the exporter got the play command.
    is_playing: bool,
}

impl<'a> Scene<'a> {
    pub fn new(stage: &'a Stage, sender: Sender<Event>, events: Receiver<Event>, plays: u32) -> Self {
        Self {
            stage,
            sender,
            events,
            actors: Vec::new(),
            table: Table::new(plays),
            log: Log::default(),
            interruption: Interruption::None,
            is_playing: false,
        }
    }

    /// Starts a child process.
    pub fn start(&mut self, part: Part, role: Role) -> Result<()> {
        let actor = Actor::start(part, role, self.stage, self.sender.clone())?;
        self.log.enter(part, actor.pid());
        self.actors.push(actor);
        Ok(())
    }

    /// Waits until all processes have exited. The failure of a reader during playback is logged,
    /// and the other processes continue.
    ///
    /// # Errors
    ///
    /// The failures that end the run.
    pub fn play(&mut self) -> Result<()> {
        let mut last_progress = Instant::now();
        let mut failures: Vec<(Part, String)> = Vec::new();
        let mut grace_ends = None;
        let mut is_stuck = false;
        while !self.actors.is_empty() {
            match self.events.recv_timeout(Duration::from_millis(100)) {
                Ok(Event::Report(part, report)) => {
                    if self.note(part, report) {
                        last_progress = Instant::now();
                    }
                }
                Ok(Event::Said(part, line)) => self.table.say(&format!("{part}: {line}")),
                Ok(Event::Silent(part)) => {
                    last_progress = Instant::now();
                    if let Some(failure) = self.leave(part)? {
                        failures.push((part, failure));
                        grace_ends.get_or_insert(Instant::now() + GRACE);
                    }
                }
                Ok(Event::Interrupted) => self.interrupt(),
                Err(_) => {}
            }
            if grace_ends.is_some_and(|end| Instant::now() >= end) {
                if !self.can_do_without(&failures) {
                    break;
                }
                self.go_on_without(failures.drain(..));
                grace_ends = None;
            }
            if last_progress.elapsed() > PATIENCE {
                let stuck = |actor: &Actor| (actor.part, format!("made no progress for {PATIENCE:?}"));
                failures.extend(self.actors.iter().map(stuck));
                is_stuck = true;
                break;
            }
        }
        self.actors.clear();
        if is_stuck || !self.can_do_without(&failures) {
            self.table.redraw(&self.log);
            failures.sort(); // the exporter's first: it may have caused the others
            let all: Vec<_> =
                failures.iter().map(|(part, how)| format!("the {} {how}", part.title())).collect();
            bail!("{}", all.join("; "));
        }
        self.go_on_without(failures);
        self.table.redraw(&self.log);
        Ok(())
    }

    /// Returns whether the run can continue: playback has begun, only readers have failed, and at
    /// least one reader is left.
    fn can_do_without(&self, failures: &[(Part, String)]) -> bool {
        let is_lost = |part| self.log.has_failed(part) || failures.iter().any(|(failed, _)| *failed == part);
        let is_reader = |(part, _): &(Part, _)| Part::READERS.contains(part);
        failures.is_empty()
            || self.is_playing && failures.iter().all(is_reader) && !Part::READERS.into_iter().all(is_lost)
    }

    fn go_on_without(&mut self, failures: impl IntoIterator<Item = (Part, String)>) {
        for (part, how) in failures {
            self.table.say(&format!("the {} {how}; the others continue", part.title()));
            self.log.fail(part, how);
        }
    }

    /// Logs a report; returns whether it shows progress.
    fn note(&mut self, part: Part, report: Report) -> bool {
        let is_progress = !matches!(report, Report::Exporter(_));
        self.log.note(part, report);
        if !is_progress {
            if !self.is_playing && self.log.readers.iter().all(|reader| reader.now.is_some()) {
                self.is_playing = true;
                self.tell(Part::Exporter, |exporter| exporter.say(PLAY));
            }
            self.table.draw(&self.log);
        }
        is_progress
    }

    /// Removes a process that has exited; returns the failure, if there was one.
    fn leave(&mut self, part: Part) -> Result<Option<String>> {
        let Some(index) = self.actors.iter().position(|actor| actor.part == part) else { return Ok(None) };
        let status = self.actors.remove(index).end()?;
        Ok((!status.success()).then(|| format!("failed ({status})")))
    }

    /// Ends the video, and all readers with it. A second interrupt kills all processes.
    fn interrupt(&mut self) {
        let can_end_well = self.is_playing && self.interruption == Interruption::None;
        self.interruption = match can_end_well && self.tell(Part::Exporter, Actor::stop) {
            true => Interruption::FilmCut,
            false => Interruption::Broken,
        };
        if self.interruption == Interruption::Broken {
            self.actors.clear();
        }
    }

    fn tell(&mut self, part: Part, what: impl FnOnce(&mut Actor)) -> bool {
        self.actors.iter_mut().find(|actor| actor.part == part).map(what).is_some()
    }
}
