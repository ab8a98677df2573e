// SPDX-License-Identifier: MIT OR Apache-2.0

//! Starts, restarts and stops the processes of a site.

mod child;
mod control;
mod event;
mod folders;
mod log;
pub mod plan;
mod site;

use crate::{
    config::{Config, Passwords},
    state::CONTROL,
};
use anyhow::{Context, Result};
use child::Starter;
use control::Publisher;
use event::Event;
use folders::Folders;
use log::Log;
use sd_notify::NotifyState;
use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use site::{GRACE, Site};
use std::{
    env,
    path::Path,
    sync::mpsc::{Sender, channel},
    thread,
    time::{Duration, Instant},
};

/// Interval of checks while nothing happens.
const TICK: Duration = Duration::from_millis(500);
/// A longer pause between two checks means that the supervisor itself was stopped.
const SUSPENDED: Duration = Duration::from_secs(5);

/// Runs a site until SIGINT or SIGTERM.
pub fn supervise(file: &Path, demo: bool) -> Result<()> {
    let config = Config::load(file, Passwords::Read)?;
    let folders = Folders::new()?;
    let (events, queue) = channel();
    watch_signals(events.clone())?;
    let publisher = Publisher::default();
    publisher.listen(&folders.control(), &events)?;
    let log = Log::new();
    if let Some(streams) = folders.hidden_streams() {
        log.line(
            "supervisor",
            &format!("other programs find the streams with FRAMESHARE_PATH={}", streams.display()),
        );
    }
    let starter = Starter {
        program: env::current_exe().context("cannot find the path of this program")?.into(),
        config: config.clone(),
        environment: folders.variables().into_iter().chain([(CONTROL, folders.control().into())]).collect(),
        log: log.clone(),
    };
    let mut site = Site::new(starter, events, publisher, demo);
    site.apply(&config);
    notify(&[NotifyState::Ready]);

    let mut before = Instant::now();
    loop {
        // An error is the end of the time: the site keeps a sender.
        let event = queue.recv_timeout(site.next_start().unwrap_or(TICK).min(TICK)).ok();
        if before.elapsed() > SUSPENDED {
            site.forgive();
        }
        // Everything that has arrived counts before processes are judged by it.
        if event.into_iter().chain(queue.try_iter()).any(|event| handle(event, file, &mut site)) {
            break;
        }
        site.check_life();
        site.reap();
        site.start_due();
        site.publish();
        notify(&[NotifyState::Watchdog]);
        before = Instant::now();
    }
    notify(&[NotifyState::Stopping]);
    site.stop(GRACE);
    Ok(())
}

/// Handles an event; returns whether it is the stop.
fn handle(event: Event, file: &Path, site: &mut Site) -> bool {
    match event {
        Event::Signal(SIGHUP) => reload(file, site),
        Event::Signal(SIGINT | SIGTERM) => return true,
        // SIGCHLD only ends the wait.
        Event::Signal(_) => {}
        Event::Line(name, generation, line) => site.line(&name, generation, line),
        Event::Command(command) => site.command(&command),
    }
    false
}

/// Applies a changed configuration; one with errors changes nothing.
fn reload(file: &Path, site: &mut Site) {
    notify(&[NotifyState::Reloading]);
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        notify(&[now]);
    }
    match Config::load(file, Passwords::Read) {
        Ok(config) => site.apply(&config),
        Err(error) => site.note(&format!("the configuration is not changed: {error:#}")),
    }
    notify(&[NotifyState::Ready]);
}

/// Tells systemd, if it started this process.
fn notify(states: &[NotifyState]) {
    // Without systemd there is no socket, and an unsent state is sent again with the next watchdog.
    let _ = sd_notify::notify(states);
}

fn watch_signals(events: Sender<Event>) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGCHLD])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            let _ = events.send(Event::Signal(signal));
        }
    });
    Ok(())
}
