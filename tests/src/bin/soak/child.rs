// SPDX-License-Identifier: MIT OR Apache-2.0

//! A test peer in a process of its own, killed on drop.

use crate::Result;
use serde_json::Value;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child as Process, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Timeout of operations that can only exceed it by a hang.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Child {
    what: String,
    process: Process,
    output: PathBuf,
}

/// Last line of a peer's output, and its exit status.
pub struct Outcome {
    pub ok: bool,
    pub summary: Value,
}

impl Child {
    /// Starts `peer` with a runtime folder.
    pub fn start(runtime: &Path, arguments: &str) -> Result<Self> {
        static STARTED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = STARTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let output = runtime.join(format!("{number}.out"));
        let process = Command::new(std::env::current_exe()?.with_file_name("peer"))
            .args(arguments.split_whitespace())
            .env("XDG_RUNTIME_DIR", runtime)
            .current_dir(runtime)
            .stdin(Stdio::null())
            .stdout(File::create(&output)?)
            .spawn()?;
        Ok(Self { what: arguments.to_owned(), process, output })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.process.try_wait()?.is_some())
    }

    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Waits until the process exits.
    pub fn finish(mut self) -> Result<Outcome> {
        let begin = Instant::now();
        let status = loop {
            match self.process.try_wait()? {
                Some(status) => break status,
                None if begin.elapsed() > PATIENCE => return Err(format!("peer {} hangs", self.what).into()),
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        let text = fs::read_to_string(&self.output)?;
        let lines = text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let summary = lines.into_iter().find(|line| line["event"] == "summary");
        let summary =
            summary.ok_or_else(|| format!("peer {} ended with {status} and said: {text}", self.what))?;
        Ok(Outcome { ok: status.success(), summary })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.output);
    }
}
