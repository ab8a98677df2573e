// SPDX-License-Identifier: MIT OR Apache-2.0

//! Child process of a role, with its reports and its log.

use super::{event::Event, log::Log, plan::Planned};
use crate::{
    config::{Config, hide_variables},
    report::{Line, REPORTS},
};
use anyhow::{Context, Result};
use rustix::{
    io::ioctl_fionbio,
    pipe::fcntl_setpipe_size,
    process::{Pid, Signal, kill_process},
};
use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::Sender,
    thread,
};

/// Longest line of a child that is kept whole.
const MAX_LINE: u64 = 64 << 10;
/// Bytes of configurations that a process has not read yet: some thousand cameras.
const PIPE: usize = 1 << 20;

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
    /// Returns the configuration of a process, as a line. Secrets are in it for `capture` alone.
    pub fn part(&self, planned: &Planned) -> Result<String> {
        let part = self.config.part(&planned.names(), planned.role.passwords())?;
        Ok(serde_json::to_string(&part)? + "\n")
    }

    /// Starts a process. Its lines arrive as events with this number.
    pub fn start(&self, planned: &Planned, generation: u64, events: &Sender<Event>) -> Result<Running> {
        let name = &planned.name;
        let part = self.part(planned).with_context(|| format!("cannot configure {name}"))?;
        let mut command = Command::new(&self.program);
        hide_variables(&mut command);
        let mut child = command
            .args([&planned.role.command(), "--config", "-"])
            .args(planned.names())
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .env(REPORTS, std::process::id().to_string())
            // They belong to the supervisor.
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID")
            // Ctrl-C is for the supervisor, which stops the others.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        if let Some(input) = &child.stdin {
            ioctl_fionbio(input, true)?;
            // Fails above the limit of a user, who has few cameras.
            let _ = fcntl_setpipe_size(input, PIPE);
        }
        if let Some(output) = child.stdout.take() {
            let (name, log, events) = (name.to_owned(), self.log.clone(), events.clone());
            thread::spawn(move || read_reports(output, &name, generation, &log, &events));
        }
        if let Some(output) = child.stderr.take() {
            let (name, log) = (name.to_owned(), self.log.clone());
            thread::spawn(move || lines(output).for_each(|line| log.line(&name, &line)));
        }
        let mut running = Running { child, generation };
        running.configure(&part);
        Ok(running)
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

    /// Sends the process its configuration. A process that does not read it is killed.
    pub fn configure(&mut self, part: &str) {
        let Some(input) = &mut self.child.stdin else { return };
        if input.write_all(part.as_bytes()).is_err() {
            self.kill();
        }
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
