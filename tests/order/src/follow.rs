// SPDX-License-Identifier: MIT OR Apache-2.0

//! A command under the detector.

use crate::{Checker, Summary, Violation};
use anyhow::Context as _;
use std::fs::File;
use std::io::Read as _;
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// Time between two reads of a growing trace.
const INTERVAL: Duration = Duration::from_millis(5);

/// Whether a process that makes an unordered access is aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// It runs on.
    No,
    /// It gets SIGABRT as soon as the trace shows the access.
    Yes,
}

/// Runs a command to its end, and passes each violation to `report` when the trace shows it.
///
/// # Errors
/// The command cannot be started, or the trace cannot be read.
pub fn run(
    command: &mut Command,
    abort: Abort,
    mut report: impl FnMut(&Violation),
) -> anyhow::Result<(ExitStatus, Summary)> {
    let trace = tempfile::NamedTempFile::with_prefix("gpu-order-").context("cannot create the trace")?;
    let mut child = command.env("SIMCUDA_ORDER", trace.path()).spawn().context("cannot start the command")?;
    let mut follower = Follower { file: trace.reopen()?, partial: Vec::new(), checker: Checker::new() };
    let status = loop {
        let status = child.try_wait()?;
        follower.read(&mut |violation| {
            report(violation);
            if let (Abort::Yes, Violation::Unordered { later, .. }) = (abort, violation)
                && let Some(pid) = later.pid.try_into().ok().and_then(rustix::process::Pid::from_raw)
            {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::ABORT);
            }
        })?;
        match status {
            Some(status) => break status,
            None => std::thread::sleep(INTERVAL),
        }
    };
    Ok((status, follower.checker.summary()))
}

/// A reader of a growing trace.
struct Follower {
    file: File,
    /// The begin of a line whose end is not read yet.
    partial: Vec<u8>,
    checker: Checker,
}

impl Follower {
    fn read(&mut self, report: &mut dyn FnMut(&Violation)) -> anyhow::Result<()> {
        self.file.read_to_end(&mut self.partial).context("cannot read the trace")?;
        let Some(end) = self.partial.iter().rposition(|&byte| byte == b'\n') else { return Ok(()) };
        let rest = self.partial.split_off(end + 1);
        let lines = std::mem::replace(&mut self.partial, rest);
        for line in String::from_utf8_lossy(&lines).lines() {
            if let Err(violation) = self.checker.feed(line) {
                report(&violation);
            }
        }
        Ok(())
    }
}
