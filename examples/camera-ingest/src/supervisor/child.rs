// SPDX-License-Identifier: MIT OR Apache-2.0

//! Child process of a role, with its reports and its log.

use super::{Event, log::Log};
use crate::{
    config::{Config, hide_variables},
    report::{Line, REPORTS},
    roles::Role,
};
use anyhow::{Context, Result};
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    process::{Pid, Signal, kill_process},
};
use std::{
    ffi::OsString,
    fs::File,
    io::{BufRead, BufReader, Read, Seek},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::Sender,
    thread,
};

/// Longest line of a child that is kept whole.
const MAX_LINE: u64 = 64 << 10;

/// Program, configuration in force and environment of all roles.
pub struct Starter {
    pub program: OsString,
    pub config: Config,
    pub environment: Vec<(&'static str, OsString)>,
    pub log: Log,
}

/// A running process. It is killed on drop.
pub struct Running {
    child: Child,
    /// Tells the lines of this process from those of an earlier one of its name.
    pub generation: u64,
}

impl Starter {
    /// Writes the configuration of a process into memory: no disk keeps its secrets.
    fn part(&self, role: Role, cameras: &[String]) -> Result<File> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("camera-ingest-config", flags)?);
        serde_json::to_writer(&file, &self.config.part(cameras, role.passwords())?)?;
        file.rewind()?;
        fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
        Ok(file)
    }

    /// Starts a role for cameras. Its lines arrive as events with these numbers.
    pub fn start(
        &self,
        name: &str,
        role: Role,
        cameras: &[String],
        generation: u64,
        events: &Sender<Event>,
    ) -> Result<Running> {
        let config = self.part(role, cameras).with_context(|| format!("cannot configure {name}"))?;
        let mut command = Command::new(&self.program);
        hide_variables(&mut command);
        let mut child = command
            .args([&role.command(), "--config", "-"])
            .args(cameras)
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .env(REPORTS, std::process::id().to_string())
            // They belong to the supervisor.
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID")
            // Ctrl-C is for the supervisor, which stops the others.
            .process_group(0)
            .stdin(config)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        if let Some(output) = child.stdout.take() {
            let (name, log, events) = (name.to_owned(), self.log.clone(), events.clone());
            thread::spawn(move || read_reports(output, &name, generation, &log, &events));
        }
        if let Some(output) = child.stderr.take() {
            let (name, log) = (name.to_owned(), self.log.clone());
            thread::spawn(move || lines(output).for_each(|line| log.line(&name, &line)));
        }
        Ok(Running { child, generation })
    }
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit, if the process has ended.
    pub fn exit(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Asks the process to end.
    pub fn terminate(&self) {
        // It is not reaped yet, so the number is still its own.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Describes an exit for people.
pub fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(0)) => "ended".to_owned(),
        (None, code) => format!("failed with status {}", code.unwrap_or(-1)),
    }
}

fn read_reports(output: impl Read, name: &str, generation: u64, log: &Log, events: &Sender<Event>) {
    for line in lines(output) {
        match serde_json::from_str::<Line>(&line) {
            Ok(line) => {
                let _ = events.send(Event::Line(name.to_owned(), generation, line));
            }
            Err(_) => log.line(name, &line),
        }
    }
}

/// Returns the lines of an output; longer ones are divided.
fn lines(output: impl Read) -> impl Iterator<Item = String> {
    let mut output = BufReader::new(output);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        let read = output.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        matches!(read, Ok(1..)).then(|| String::from_utf8_lossy(&line).trim_end().to_owned())
    })
}
