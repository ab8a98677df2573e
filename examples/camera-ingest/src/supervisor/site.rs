// SPDX-License-Identifier: MIT OR Apache-2.0

//! The processes of a site and their states.

use super::{
    child::{Running, Starter, describe},
    control::Publisher,
    event::Event,
    plan::{self, Planned},
};
use crate::{
    clock::since_1970,
    config::{Config, redact},
    report::{Condition, Line},
    roles::{Role, backoff::Backoff},
    state::{self, Command, Process, State},
};
use std::{
    collections::VecDeque,
    sync::mpsc::Sender,
    thread,
    time::{Duration, Instant},
};

/// Time that processes have to end.
pub const GRACE: Duration = Duration::from_secs(5);
const FIRST_DELAY: Duration = Duration::from_millis(250);
const MAX_DELAY: Duration = Duration::from_secs(15);
/// Number of events that are kept.
const MAX_EVENTS: usize = 200;
/// Time that cameras have before the address of the page is printed.
const SETTLING: Duration = Duration::from_secs(20);
/// Interval in which the end of processes is checked at the stop.
const STEP: Duration = Duration::from_millis(20);

pub struct Site {
    starter: Starter,
    lines: Sender<Event>,
    publisher: Publisher,
    demo: bool,
    hang_timeout: Option<Duration>,
    entries: Vec<Entry>,
    events: VecDeque<state::Event>,
    generations: u64,
    is_changed: bool,
    /// Address of the page, and until when its print may wait; none when it is printed.
    page: Option<(String, Option<Instant>)>,
}

/// A process that is to run.
struct Entry {
    planned: Planned,
    running: Option<Running>,
    backoff: Backoff,
    /// When it was started, or is to be started.
    time: Instant,
    /// When it last gave a sign of life.
    alive: Instant,
    state: Process,
}

impl Site {
    pub fn new(starter: Starter, lines: Sender<Event>, publisher: Publisher, demo: bool) -> Self {
        Self {
            starter,
            lines,
            publisher,
            demo,
            hang_timeout: None,
            entries: Vec::new(),
            events: VecDeque::new(),
            generations: 0,
            is_changed: true,
            page: None,
        }
    }

    /// Starts, restarts and stops what the configuration changes.
    pub fn apply(&mut self, config: &Config) {
        self.hang_timeout = config.hang_timeout;
        self.starter.config = config.clone();
        let before: Vec<_> = self.entries.iter().map(|entry| entry.planned.clone()).collect();
        let planned = plan::processes(config, &before);
        let (mut kept, removed) = std::mem::take(&mut self.entries)
            .into_iter()
            .partition::<Vec<_>, _>(|entry| planned.iter().any(|planned| entry.can_become(planned)));
        for entry in &removed {
            self.event(&entry.planned.name, None, "stopped: the configuration changed");
        }
        stop(removed, GRACE);
        for planned in planned {
            self.entries.push(match kept.iter().position(|entry| entry.can_become(&planned)) {
                Some(index) => kept.swap_remove(index).with(planned, &self.starter),
                None => Entry::new(planned),
            });
        }
        self.is_changed = true;
        self.start_due();
    }

    /// Returns the time until the next start.
    pub fn next_start(&self) -> Option<Duration> {
        let waiting = self.entries.iter().filter(|entry| entry.running.is_none());
        waiting.map(|entry| entry.time.saturating_duration_since(Instant::now())).min()
    }

    /// Starts processes whose time has come.
    pub fn start_due(&mut self) {
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.running.is_some() || entry.time > Instant::now() {
                continue;
            }
            self.generations += 1;
            let name = entry.planned.name.clone();
            let result = self.starter.start(&entry.planned, self.generations, &self.lines);
            let entry = &mut self.entries[index];
            entry.time = Instant::now();
            entry.alive = entry.time;
            let text = match result {
                Ok(running) => {
                    entry.state.pid = Some(running.pid());
                    entry.state.started = now();
                    entry.running = Some(running);
                    format!("started as process {}", entry.state.pid.unwrap_or_default())
                }
                Err(error) => {
                    entry.time += entry.backoff.after(None);
                    format!("{error:#}")
                }
            };
            self.event(&name, None, &text);
        }
    }

    /// Notes the ends of processes and plans their next starts.
    pub fn reap(&mut self) {
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            let Some(status) = entry.running.as_mut().and_then(Running::exit) else { continue };
            entry.running = None;
            let delay = entry.backoff.after(Some(entry.time));
            entry.time = Instant::now() + delay;
            entry.state.pid = None;
            entry.state.restarts += 1;
            entry.state.reports.clear();
            let exit = describe(status);
            entry.state.last_exit = Some(exit.clone());
            let name = entry.planned.name.clone();
            self.event(&name, None, &format!("{exit}; next start in {:.1} s", delay.as_secs_f64()));
        }
    }

    /// Kills processes that give no sign of life.
    pub fn check_life(&mut self) {
        let Some(limit) = self.hang_timeout else { return };
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            let Some(running) = entry.running.as_mut().filter(|_| entry.alive.elapsed() > limit) else {
                continue;
            };
            running.kill();
            entry.alive = Instant::now();
            let name = entry.planned.name.clone();
            self.event(&name, None, &format!("no sign of life for {} s: killed", limit.as_secs()));
        }
    }

    /// Counts the time without signs of life from now on.
    pub fn forgive(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.alive = Instant::now());
    }

    /// Takes a line of a process.
    pub fn line(&mut self, name: &str, generation: u64, line: Line) {
        let is_it = |entry: &&mut Entry| {
            entry.planned.name == name
                && entry.running.as_ref().is_some_and(|running| running.generation == generation)
        };
        let Some(entry) = self.entries.iter_mut().find(is_it) else { return };
        entry.alive = Instant::now();
        let Line::Report(report) = line else { return };
        // A removed camera may still report its end.
        if !report.camera.is_empty() && !entry.state.cameras.contains(&report.camera) {
            return;
        }
        let before = entry.state.reports.insert(report.camera.clone(), report.clone());
        self.is_changed = true;
        if report.is_news_after(before.as_ref()) {
            // The wall reports its address without a camera.
            let is_page = entry.planned.role == Role::Wall
                && report.camera.is_empty()
                && report.condition == Condition::Running;
            let text = format!("{}: {}", report.condition, report.text);
            self.event(name, Some(report.camera), &text);
            if is_page && self.page.as_ref().is_none_or(|(page, _)| *page != report.text) {
                self.page = Some((report.text, Some(Instant::now() + SETTLING)));
            }
        }
    }

    /// Prints the address of the page, once, when all cameras are received or some time has passed.
    fn announce(&mut self) {
        let Some((page, Some(deadline))) = &self.page else { return };
        let is_received = |entry: &Entry| {
            let reports = &entry.state.reports;
            let count = reports.values().filter(|report| report.condition == Condition::Running).count();
            entry.planned.role != Role::Capture || count == entry.planned.cameras.len()
        };
        if self.entries.iter().all(is_received) || Instant::now() >= *deadline {
            self.starter.log.line("supervisor", &format!("page at {page}"));
            self.page = Some((page.clone(), None));
        }
    }

    pub fn command(&mut self, command: &Command) {
        let Command::Kill { process } = command;
        if !self.demo {
            self.note("refused to kill a process: start with --demo");
            return;
        }
        let entry = self.entries.iter_mut().find(|entry| entry.planned.name == *process);
        match entry.and_then(|entry| entry.running.as_mut()) {
            Some(running) => {
                running.kill();
                self.event(process, None, "killed on request of the page");
            }
            None => self.note(&format!("no process '{process}' to kill")),
        }
    }

    /// Notes an event of the supervisor itself.
    pub fn note(&mut self, text: &str) {
        self.event("supervisor", None, text);
    }

    /// Publishes the state if it has changed.
    pub fn publish(&mut self) {
        self.announce();
        if std::mem::take(&mut self.is_changed) {
            self.publisher.publish(&State {
                demo: self.demo,
                processes: self.entries.iter().map(|entry| entry.state.clone()).collect(),
                events: self.events.iter().cloned().collect(),
            });
        }
    }

    /// Stops all processes; kills those that do not end in time.
    pub fn stop(&mut self, grace: Duration) {
        stop(std::mem::take(&mut self.entries), grace);
    }

    fn event(&mut self, process: &str, camera: Option<String>, text: &str) {
        let shown = match camera.as_deref() {
            None | Some("") => text.to_owned(),
            Some(camera) => format!("{camera}: {text}"),
        };
        self.starter.log.line(process, &shown);
        self.events.push_back(state::Event {
            time: now(),
            process: process.to_owned(),
            camera,
            text: redact(text),
        });
        if self.events.len() > MAX_EVENTS {
            self.events.pop_front();
        }
        self.is_changed = true;
    }
}

impl Entry {
    fn new(planned: Planned) -> Self {
        let state = Process {
            name: planned.name.clone(),
            role: planned.role,
            cameras: planned.names(),
            pid: None,
            restarts: 0,
            started: 0.0,
            last_exit: None,
            reports: Default::default(),
        };
        let now = Instant::now();
        let backoff = Backoff::new(FIRST_DELAY, MAX_DELAY);
        Self { planned, running: None, backoff, time: now, alive: now, state }
    }

    /// Returns whether the process can go on under a changed plan. A process that does not run
    /// starts anew, without a delay, if the plan changes.
    fn can_become(&self, planned: &Planned) -> bool {
        *planned == self.planned || (self.running.is_some() && planned.continues(&self.planned))
    }

    fn with(mut self, planned: Planned, starter: &Starter) -> Self {
        self.state.cameras = planned.names();
        self.state.reports.retain(|camera, _| camera.is_empty() || self.state.cameras.contains(camera));
        if planned != self.planned
            && let Some(running) = &mut self.running
        {
            match starter.part(&planned) {
                Ok(part) => running.configure(&part),
                Err(_) => running.kill(),
            }
        }
        Self { planned, ..self }
    }
}

/// Ends processes; kills those that are not over in time.
fn stop(mut entries: Vec<Entry>, grace: Duration) {
    let mut running: Vec<_> = entries.iter_mut().filter_map(|entry| entry.running.take()).collect();
    running.iter().for_each(Running::terminate);
    let deadline = Instant::now() + grace;
    while !running.is_empty() && Instant::now() < deadline {
        running.retain_mut(|process| process.exit().is_none());
        thread::sleep(STEP);
    }
    // Dropping kills.
}

/// Seconds since 1970.
fn now() -> f64 {
    since_1970().as_secs_f64()
}
