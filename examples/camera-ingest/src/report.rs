// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports of roles to the supervisor: JSON lines on standard output, which is a pipe then.
//! Without a supervisor they are lines of text on standard error.
//!
//! A thread writes them, so that a supervisor that is stopped or busy holds no role back.

use crate::config::redact;
use frameshare::make_printable;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    env,
    io::Write,
    process,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

/// Environment variable with the supervisor's process number: it reads the reports of the role.
pub const REPORTS: &str = "CAMERA_INGEST_REPORTS";

/// Interval of signs of life, and minimum interval between reports of one camera.
const ALIVE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);

/// A line on the pipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    Report(Report),
    /// Sign of life.
    Alive,
}

/// State of one camera in one role, whenever it changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub camera: String,
    pub condition: Condition,
    /// For people: why the condition is so, such as "no reader".
    pub text: String,
    /// Figures of the role, such as "segments" and "free_bytes" of the recorder.
    #[serde(default)]
    pub values: BTreeMap<String, f64>,
}

impl Report {
    /// Returns whether condition or text are new. Figures alone are no news.
    pub fn is_news_after(&self, last: Option<&Self>) -> bool {
        last.is_none_or(|last| (last.condition, &last.text) != (self.condition, &self.text))
    }
}

/// Condition of a camera in a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// At work.
    Running,
    /// Not needed now: a decoder without readers.
    Off,
    /// Connecting, or waiting for its stream.
    Waiting,
    /// Not at work, and it should be: disk full, camera lost.
    Failed,
}

/// Sends reports. Clones send to the same pipe.
#[derive(Clone)]
pub struct Reporter(Arc<Outbox>);

#[derive(Default)]
struct Outbox {
    /// The newest report of each camera that is not written.
    pending: Mutex<BTreeMap<String, Report>>,
    is_pending: Condvar,
}

impl Reporter {
    /// Returns the reporter to the supervisor, or to standard error without one. Under a supervisor
    /// the process gets SIGTERM when the supervisor ends.
    pub fn of_environment() -> Self {
        let supervisor = env::var(REPORTS).ok();
        let reporter = Self(Arc::default());
        let outbox = reporter.0.clone();
        if let Some(supervisor) = supervisor {
            end_with(&supervisor);
            thread::spawn(move || outbox.write_to_supervisor());
        } else {
            thread::spawn(move || outbox.write_to_terminal());
        }
        reporter
    }

    /// Sends a report; replaces an older one of the camera that is not written. A supervisor that
    /// has ended is no error.
    pub fn send(&self, report: &Report) {
        let mut pending = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = redact(&report.text);
        // A camera may have written a part of it.
        make_printable(&mut text, usize::MAX);
        pending.insert(report.camera.clone(), Report { text, ..report.clone() });
        self.0.is_pending.notify_all();
    }
}

/// Asks the kernel for SIGTERM at the end of the supervisor's main thread.
fn end_with(supervisor: &str) {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        eprintln!("this process may outlive its supervisor: {error}");
    }
    // It may have ended before.
    let parent = getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
    if parent.to_string() != supervisor {
        process::exit(0);
    }
}

impl Outbox {
    fn write_to_supervisor(&self) {
        loop {
            let reports = self.wait(ALIVE);
            let mut lines: Vec<_> = reports.into_iter().map(Line::Report).collect();
            if lines.is_empty() {
                lines.push(Line::Alive);
            }
            let text: String = lines
                .iter()
                .filter_map(|line| serde_json::to_string(line).ok())
                .fold(String::new(), |text, line| text + &line + "\n");
            let mut output = std::io::stdout().lock();
            if output.write_all(text.as_bytes()).and_then(|()| output.flush()).is_err() {
                // The signal of the parent's death ends the process.
                return;
            }
            drop(output);
            thread::sleep(PAUSE);
        }
    }

    /// Writes changes of condition and text.
    fn write_to_terminal(&self) {
        let mut written = BTreeMap::new();
        loop {
            for report in self.wait(ALIVE) {
                if report.is_news_after(written.get(&report.camera)) {
                    eprintln!("{}: {}: {}", report.camera, report.condition, report.text);
                    written.insert(report.camera.clone(), report);
                }
            }
        }
    }

    /// Waits for reports and takes them; none after the time.
    fn wait(&self, time: Duration) -> Vec<Report> {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.is_pending.wait_timeout_while(pending, time, |pending| pending.is_empty());
        let (mut pending, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *pending).into_values().collect()
    }
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}
