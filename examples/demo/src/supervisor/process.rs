// SPDX-License-Identifier: MIT OR Apache-2.0

//! Child process of a job.

use super::environment::Environment;
use crate::{Job, report::Report};
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

/// Process of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Process {
    Exporter,
    Checksum,
    Motion,
    Recorder,
    Playback,
}

impl Process {
    pub const READERS: [Self; 3] = [Self::Checksum, Self::Motion, Self::Recorder];

    /// Returns the title for a sentence.
    pub fn title(self) -> String {
        match self {
            Self::Checksum | Self::Motion => format!("{self} reader"),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for Process {
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
    /// Report of a job.
    Report(Process, Report),
    /// Line of a job that is not a report.
    Said(Process, String),
    /// A job closed its outputs: it is about to exit.
    Silent(Process),
    /// SIGINT or SIGTERM.
    Interrupted,
}

/// Child process with a job. It is killed on drop.
pub struct ChildProcess {
    pub process: Process,
    child: Child,
    stdin: Option<ChildStdin>,
}

impl ChildProcess {
    /// Starts this program in a job.
    pub fn start(
        process: Process,
        job: Job,
        environment: &Environment,
        events: Sender<Event>,
    ) -> Result<Self> {
        let program = env::current_exe().context("cannot find the path of this program")?;
        let mut command = Command::new(program);
        command
            .args(arguments(job))
            // Ctrl-C goes to the supervisor only: it ends the video, and the other processes end
            // with it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        environment.set(&mut command);
        let mut child = command.spawn().with_context(|| format!("cannot start the {}", process.title()))?;
        let stdin = child.stdin.take();
        if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
            thread::spawn(move || forward_output(process, stdout, stderr, &events));
        }
        Ok(Self { process, child, stdin })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command to the job.
    pub fn command(&mut self, command: &str) {
        if let Some(stdin) = &mut self.stdin {
            // A closed pipe means that the job is about to exit.
            let _ = stdin.write_all(
                format!(
                    "{command}
"
                )
                .as_bytes(),
            );
        }
    }

    /// Stops the job by closing its standard input.
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

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Turns the output of a job into events.
fn forward_output(process: Process, stdout: impl Read, stderr: impl Read + Send, events: &Sender<Event>) {
    thread::scope(|scope| {
        scope.spawn(|| {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = events.send(Event::Said(process, line));
            }
        });
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = events.send(match serde_json::from_str(&line) {
                Ok(report) => Event::Report(process, report),
                Err(_) => Event::Said(process, line),
            });
        }
    });
    let _ = events.send(Event::Silent(process));
}

/// Returns the arguments that parse to [`Job`].
fn arguments(job: Job) -> Vec<OsString> {
    match job {
        Job::Export { video, stream, loops } => {
            vec!["export".into(), video.into(), stream.as_str().into(), loops.to_string().into()]
        }
        Job::ReadChecksum { stream } => vec!["read-checksum".into(), stream.as_str().into()],
        Job::ReadMotion { stream } => vec!["read-motion".into(), stream.as_str().into()],
        Job::Record { stream, file } => vec!["record".into(), stream.as_str().into(), file.into()],
        Job::PlayBack { file } => vec!["play-back".into(), file.into()],
    }
}
