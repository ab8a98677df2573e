// SPDX-License-Identifier: MIT OR Apache-2.0

//! Child process of a role.

use super::stage::Stage;
use crate::{Role, report::Report};
use anyhow::{Context, Result};
use std::{
    env,
    ffi::OsString,
    fmt,
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::Sender,
    thread,
    time::{Duration, Instant},
};

/// Part of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Exporter,
    Checksum,
    Motion,
    Recorder,
    Playback,
}

impl Part {
    pub const READERS: [Self; 3] = [Self::Checksum, Self::Motion, Self::Recorder];

    /// Returns the name of the part for a sentence.
    pub fn title(self) -> String {
        match self {
            Self::Checksum | Self::Motion => format!("{self} reader"),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Exporter => "exporter",
            Self::Checksum => "checksum",
            Self::Motion => "motion",
            Self::Recorder => "recorder",
            Self::Playback => "playback",
        })
    }
}

/// Events that the supervisor waits for.
pub enum Event {
    /// Report of a role.
    Report(Part, Report),
    /// Line of a role that is not a report.
    Said(Part, String),
    /// A role closed its outputs: it is about to exit.
    Silent(Part),
    /// SIGINT or SIGTERM.
    Interrupted,
}

/// Child process with a role. It is killed on drop.
pub struct Actor {
    pub part: Part,
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Actor {
    /// Starts this program in a role.
    pub fn start(part: Part, role: Role, stage: &Stage, events: Sender<Event>) -> Result<Self> {
        let program = env::current_exe().context("cannot find the path of this program")?;
        let mut command = Command::new(program);
        command
            .args(arguments(role))
            // Ctrl-C goes to the supervisor only: it ends the video, and the other processes end
            // with it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        stage.set(&mut command);
        let mut child = command.spawn().with_context(|| format!("cannot start the {}", part.title()))?;
        let stdin = child.stdin.take();
        if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
            thread::spawn(move || attend(part, stdout, stderr, &events));
        }
        Ok(Self { part, child, stdin })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command to the role.
    pub fn say(&mut self, word: &str) {
        if let Some(stdin) = &mut self.stdin {
            // A closed pipe means that the role is about to exit.
            let _ = stdin.write_all(format!("{word}\n").as_bytes());
        }
    }

    /// Stops the role by closing its standard input.
    pub fn stop(&mut self) {
        self.stdin = None;
    }

    /// Waits for a process that closed its outputs and returns its exit status; kills it after 10
    /// s.
    pub fn end(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                self.child.kill()?;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Turns the output of a role into events.
fn attend(part: Part, stdout: impl Read, stderr: impl Read + Send, events: &Sender<Event>) {
    thread::scope(|scope| {
        scope.spawn(|| {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = events.send(Event::Said(part, line));
            }
        });
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = events.send(match serde_json::from_str(&line) {
                Ok(report) => Event::Report(part, report),
                Err(_) => Event::Said(part, line),
            });
        }
    });
    let _ = events.send(Event::Silent(part));
}

/// Returns the arguments that parse to [`Role`].
fn arguments(role: Role) -> Vec<OsString> {
    match role {
        Role::Export { film, stream, plays } => {
            vec!["export".into(), film.into(), stream.as_str().into(), plays.to_string().into()]
        }
        Role::ReadChecksum { stream } => vec!["read-checksum".into(), stream.as_str().into()],
        Role::ReadMotion { stream } => vec!["read-motion".into(), stream.as_str().into()],
        Role::Record { stream, file } => vec!["record".into(), stream.as_str().into(), file.into()],
        Role::PlayBack { file } => vec!["play-back".into(), file.into()],
    }
}
